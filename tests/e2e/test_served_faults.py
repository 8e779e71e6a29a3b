"""Errors and recovery for a user when a process dies, or when the server is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from server_process import Server, start_server, wait_until

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start
from ferrule.engine.device_names import MOST_EMULATED
from ferrule.errors import ModelUnavailable
from ferrule.lab import Lab, pair

pytestmark = pytest.mark.slow

LOST = "FERRULE_EMULATED_LOST"
SOON = 10.0
"""Seconds; a busy machine may need them for what takes a fraction of one on a quiet one."""


QUESTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "logprobs": 2},
    "sampled": {"temperature": 1.0, "seed": 11, "presence_penalty": 0.5, "extra_body": {"repetition_penalty": 1.1}},
}

TOKENS = 300
"""Of an answer: ranks may be some hundred ahead of a client that gets no core."""


def ask(
    server: Server, kind: str, disturb: Callable[[], object] | None = None, tokens: int = TOKENS
) -> list[tuple[Any, ...]]:
    """A streamed answer, event by event; after half of its tokens, or 20 of them, something happens."""
    fields = {**QUESTIONS[kind]}
    extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
    stream = server.client(timeout=90).completions.create(
        model="ferrule-demo",
        prompt="def main(",
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
        **fields,
    )
    found: list[tuple[Any, ...]] = []
    for chunk in stream:
        if chunk.usage is not None:
            found.append((chunk.usage.prompt_tokens, chunk.usage.completion_tokens))
            continue
        choice = chunk.choices[0]
        found.append((choice.text, choice.finish_reason, choice.logprobs.tokens if choice.logprobs else None))
        if disturb is not None and len(found) == min(tokens // 2, 20):
            disturb()
    return found


def strike(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        process.send_signal(number)


def by_rank(processes: list[psutil.Process]) -> list[psutil.Process]:
    """One that took the place of another has a process id that tells nothing."""
    return sorted(processes, key=lambda each: int(each.environ()["FERRULE_RANK"]))


@pytest.fixture(scope="module")
def steady_demo() -> Iterator[Server]:
    """In float32, where rounding does not decide between tokens, whichever way a cache is computed again."""
    server = start_server("--demo", "--pp", "2", "--dtype", "float32", standby=True)
    yield server
    server.stop()


def test_answers_go_on_after_ranks_were_killed_or_stopped(steady_demo: Server) -> None:
    server = steady_demo
    whole = {kind: ask(server, kind) for kind in QUESTIONS}
    assert whole["greedy"][-1][1] == TOKENS
    cases = (
        ([0], signal.SIGKILL, "greedy"),
        ([0, 1], signal.SIGSTOP, "sampled"),  # no rank is left to miss the other
        ([1], signal.SIGKILL, "sampled"),
        ([1], signal.SIGSTOP, "greedy"),
    )
    for count, (victims, number, kind) in enumerate(cases, start=1):
        ranks, standby = by_rank(server.ranks()), []
        assert len(ranks) == 2
        if count == len(cases):  # at any other time it may be that these are not ready yet
            wait_until(lambda: len(server.standby()) == 2, 90, "standby are ready")
            standby = by_rank(server.standby())
        assert ask(server, kind, partial(strike, [ranks[each] for each in victims], number)) == whole[kind]
        health = server.health()
        assert health.status_code == 200
        assert health.json()["recoveries"] == count
        assert f"rank {victims[0]}" in health.json()["last_recovery"]["cause"]
        assert health.json()["last_recovery"]["requests"] == 1
        left = [rank for number, rank in enumerate(ranks) if number not in victims]
        assert [rank for rank in by_rank(server.ranks()) if rank in ranks] == left, "those that are left go on"
        assert health.json()["last_recovery"]["kept"] == [each for each in (0, 1) if each not in victims]
        assert not standby or set(server.ranks()) == {*left, standby[victims[0]]}
    assert server.output.count("1 interrupted requests go on") == len(cases)


def test_a_killed_server_leaves_no_rank_behind(steady_demo: Server) -> None:
    """It is the last test of that server."""
    children = [*steady_demo.ranks(), *steady_demo.standby()]
    assert len(children) >= 2
    steady_demo.process.kill()
    _, alive = psutil.wait_procs(children, timeout=SOON)
    assert not alive
    with pytest.raises(httpx.ConnectError):
        steady_demo.health()


def test_answers_on_different_devices_are_those_of_processors_and_outlive_a_device(tmp_path: Path) -> None:
    away = tmp_path / "away"
    command = ("--demo", "--tp", "2", "--device", "cpu,emulated", "--dtype", "float32")
    server = start_server(*command, env={LOST: str(away), "FERRULE_MOVE_BACK": "1"})
    try:
        assert "emulated:0" in server.output
        whole = ask(server, "greedy", tokens=40)

        def after(number: int, words: str, *, kept: bool) -> dict[str, Any]:
            """Health after a device was lost in the middle of an answer. ``kept``: the other rank has its process."""
            ranks = server.ranks()
            assert ask(server, "greedy", partial(strike, ranks[1:], number), tokens=40) == whole
            health: dict[str, Any] = server.health().json()
            assert words in health["last_recovery"]["cause"]
            assert "rank 1" in health["last_recovery"]["cause"]
            assert [rank.is_running() for rank in ranks] == [kept, False]
            return health

        health = after(signal.SIGUSR2, "out of memory", kept=True)  # which the device still is there after
        assert health["recoveries"] == 1
        assert "note" not in health
        away.mkdir()
        for number in range(1, MOST_EMULATED):
            (away / str(number)).touch()
        health = after(signal.SIGUSR1, "fell off the bus", kept=False)  # the plan is another one then
        assert (health["status"], health["recoveries"]) == ("ok", 2)
        assert health["note"] == "emulated:0 stays lost, so the model runs with rank 0 on cpu, rank 1 on cpu"
        assert health["note"] in server.output
        assert ask(server, "greedy", tokens=40) == whole, "all of it on processors"
        (away / "0").unlink()
        wait_until(lambda: "emulated:0 answers again" in server.output, 60, "a probe finds it")

        def back() -> bool:
            assert ask(server, "greedy", tokens=40) == whole, "answers go on while it moves"
            return bool(server.health().json().get("note") == "emulated:0 is back in use")

        wait_until(back, 150, "the model is back on its device")
        assert ask(server, "greedy", tokens=40) == whole
    finally:
        server.stop()


def test_a_cut_cable_is_a_pause_and_until_then_says_what_is_missing(emulated_hosts: None) -> None:
    params = SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True)
    prompt = list(range(3, 20))

    async def body() -> None:
        with Lab(pair(), names=("one", "two")) as lab:
            engine = await start(EngineOptions("demo", tensor=2, dtype="float32"), lab=lab)
            try:
                whole = [token.id async for token in engine.generate(prompt, params)]
                made = []
                async for token in engine.generate(prompt, params):
                    made.append(token.id)
                    if len(made) == 70:
                        lab.cables[0].cut()
                        opened = asyncio.create_task(open_again(engine, lab))
                assert made == whole
                assert "two cannot be reached from one" in await opened
                assert engine.health().recoveries == 1
            finally:
                await engine.close()

    async def open_again(engine: LocalEngine, lab: Lab) -> str:
        async with asyncio.timeout(60):
            while engine.health().state != "waiting":
                await asyncio.sleep(0.02)
            with pytest.raises(ModelUnavailable) as caught:
                await anext(engine.generate(prompt, params))
            lab.cables[0].restore()
            return str(caught.value)

    asyncio.run(body())


def test_ctrl_c_during_a_stream_ends_every_process_soon(fresh_demo: Server) -> None:
    processes = [psutil.Process(fresh_demo.process.pid), *fresh_demo.ranks()]
    stream = fresh_demo.client(timeout=30).completions.create(
        model="ferrule-demo", prompt="def", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    fresh_demo.process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(processes[1:], timeout=SOON)
    assert not alive
    assert fresh_demo.process.wait(SOON) in (0, 130)
