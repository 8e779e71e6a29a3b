"""A guest from its start to its end, over a small llama-server that speaks the real one's HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fake_llama import CONTEXT, END, UNTOLD, answer
from guest_engines import GREEDY, ask, engine_of, ids, on_the_path, requests, with_engine

from ferrule.engine.guests import engine as engine_module
from ferrule.engine.guests import supervisor
from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.llama_cpp.guest import LlamaCpp
from ferrule.engine.guests.running import client_of
from ferrule.engine.host import requests as bookkeeping
from ferrule.engine.types import Constraint
from ferrule.errors import EngineError, ModelUnavailable, RequestError

JSON = Constraint("json_schema", '{"type": "object"}')


def server_of(engine: GuestEngine) -> int:
    """The process of the program itself, below its guard."""
    guard = engine.ranks[0].pid
    (pid,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    return int(pid)


def test_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that needs no other start: tokens that events leave out, ends, limits, faults, and what it was asked for."""
    log = on_the_path(tmp_path, monkeypatch, refuse=4, garbage=5, cut=6)

    async def body(engine: GuestEngine) -> None:
        assert engine.health().state == "ready"
        assert engine.max_context == CONTEXT  # as it says, which is less than was asked for

        told = await ask(engine, [1, 10])
        assert ids(told) == answer([1, 10], 40)
        assert any(token % UNTOLD == 0 for token in ids(told))
        assert [token.finish for token in told] == [None] * 39 + ["length"]

        drawn, again = [await ask(engine, [1, 10], replace(GREEDY, temperature=1.0, seed=9)) for _ in range(2)]
        assert ids(drawn) == ids(again) != ids(told)

        ended = await ask(engine, [3, 10])
        assert ids(ended) == [*answer([3, 10], 3), END]
        assert ended[-1].finish == "stop"
        stopped = await ask(engine, [1, 10], replace(GREEDY, stop_token_ids=(answer([1, 10], 9)[-1],)))
        assert (len(stopped), stopped[-1].finish) == (9, "stop")

        (first, *_) = await ask(engine, [1, 10], replace(GREEDY, logprobs=0))
        assert (first.logprob, first.top) == (-first.id / 100, ())
        (first, *_) = await ask(engine, [1, 10], replace(GREEDY, logprobs=1))
        assert first.top == ((first.id, -first.id / 100),)

        whole = await ask(engine, [1] * (CONTEXT - 5), replace(GREEDY, max_tokens=None))
        assert len(whole) == 5
        with pytest.raises(RequestError, match="context is 512 tokens"):
            await ask(engine, [1] * CONTEXT)
        with pytest.raises(RequestError, match=r"llama\.cpp: no such thing"):
            await ask(engine, [4])
        with pytest.raises(EngineError, match=r"said what is no answer .*what\?"):
            await ask(engine, [5])
        with pytest.raises(EngineError, match="without saying why"):
            await ask(engine, [6])
        assert engine.health().running == 0

        # A connection that is lost again and again, although the guest runs: no request is asked for ever.
        monkeypatch.setattr(engine_module, "NOTICE_SECONDS", 0.02)
        monkeypatch.setattr(engine._supervisor.running, "_client", client_of(tmp_path / "nothing"))
        with pytest.raises(EngineError, match="3 times for this request, although it runs"):
            await ask(engine, [1, 10])

    with_engine(body)
    first = requests(log)[0]
    assert (first["prompt"], first["n_predict"], first["temperature"]) == ([1, 10], 40, 0)
    assert first["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]


def test_many_at_once_and_one_that_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = on_the_path(tmp_path, monkeypatch, tells=True)

    async def body(engine: GuestEngine) -> None:
        async with aclosing(engine.generate([1, 77], replace(GREEDY, max_tokens=400))) as endless:
            await anext(endless)
            asked = [asyncio.create_task(ask(engine, [1, number])) for number in range(6)]
            await asyncio.sleep(0)
            assert (engine.health().running, engine.health().waiting) == (2, 5)  # it takes two at once
            await asked[0]
        while {"hung up": [1, 77]} not in requests(log):  # by the test's deadline
            await asyncio.sleep(0.01)
        for number, task in enumerate(asked):
            assert ids(await task) == answer([1, number], 40)

        last = asyncio.create_task(ask(engine, [1, 5]))
        await asyncio.sleep(0)
        assert await engine.drain(10.0)
        assert len(await last) == 40
        with pytest.raises(ModelUnavailable, match="being stopped"):
            await ask(engine, [1, 5])

    with_engine(body, sequences=2)


def test_answers_go_on_after_the_guest_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = on_the_path(tmp_path, monkeypatch)

    async def killed(engine: GuestEngine, *asked: dict[str, object]) -> list[list[int]]:
        """Answers to prompts, of each of which five tokens had come when the guest was killed."""
        begun = asyncio.Barrier(len(asked) + 1)

        async def one(number: int, changes: dict[str, object]) -> list[int]:
            found = []
            async for token in engine.generate([1, number], replace(GREEDY, **changes)):
                found.append(token.id)
                if len(found) == 5:
                    await begun.wait()
            return found

        tasks = [asyncio.create_task(one(number, changes)) for number, changes in enumerate(asked)]
        await begun.wait()
        os.kill(server_of(engine), signal.SIGKILL)
        return [await task for task in tasks]

    async def body(engine: GuestEngine) -> None:
        before = server_of(engine)
        drawn = {"temperature": 1.0, "seed": 3}
        greedy, free, bound = await killed(engine, {}, drawn, drawn | {"constraint": JSON})
        assert greedy == answer([1, 0], 40)
        assert len(free) == 40
        assert free[:5] == answer([1, 1], 5, seed=3)
        assert free != answer([1, 1], 40, seed=3)  # its random numbers are others from there on
        assert bound == answer([1, 2], 40, seed=3)  # made anew, and the same
        health = engine.health()
        assert (health.state, health.recoveries) == ("ready", 1)
        assert health.last_recovery is not None
        assert health.last_recovery.requests == 3
        assert "was killed by SIGKILL" in health.last_recovery.cause
        assert not Path(f"/proc/{before}").exists()

    with_engine(body)
    asked = [each for each in requests(log) if "prompt" in each]
    (resumed, *_) = [each for each in asked if each["pid"] != asked[0]["pid"] and each["prompt"][:2] == [1, 0]]
    assert resumed["prompt"][:7] == [1, 0, *answer([1, 0], 5)]


def test_a_request_that_crashes_the_guest_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_path(tmp_path, monkeypatch, crash=9)
    monkeypatch.setattr(supervisor, "pause", lambda attempt: 0.0)
    monkeypatch.setattr(bookkeeping, "POISON", 2)

    async def body(engine: GuestEngine) -> None:
        bad = asyncio.create_task(ask(engine, [9]))
        good = asyncio.create_task(ask(engine, [1, 10], replace(GREEDY, max_tokens=300)))
        with pytest.raises(RequestError, match="2 crashes in a row") as raised:
            await bad
        assert raised.value.code == "request_crashes_model"
        assert ids(await good) == answer([1, 10], 300)
        assert engine.health().recoveries == 2

    with_engine(body)


def test_a_guest_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(LlamaCpp):
        start_seconds = 0.3

    on_the_path(tmp_path, monkeypatch, dies="error: no model here")
    with pytest.raises(EngineError, match=r"llama\.cpp ended with status 3; its last words: error: no model here"):
        with_engine(lambda engine: asyncio.sleep(0))
    on_the_path(tmp_path, monkeypatch, unhealthy=True)
    with pytest.raises(EngineError, match=r"was not ready within 0\.3 s"):
        with_engine(lambda engine: asyncio.sleep(0), Impatient())
    assert not psutil.Process().children(recursive=True)


def test_what_guests_do_not_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_path(tmp_path, monkeypatch)

    async def main() -> None:
        engine = engine_of(LlamaCpp())
        with pytest.raises(RequestError, match=r"presence_penalty: the engine llama\.cpp does not") as raised:
            await ask(engine, [1], replace(GREEDY, presence_penalty=0.5))
        assert raised.value.param == "presence_penalty"
        with pytest.raises(RequestError, match="embeddings"):
            await engine.embed([[1]])
        with pytest.raises(EngineError, match="the model is loading"):
            await ask(engine, [1])

    asyncio.run(main())
