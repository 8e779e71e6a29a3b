"""vLLM as a guest from its start to its end, over a small server that speaks its HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_llama import END, answer
from fake_vllm import CONTEXT
from guest_engines import GREEDY, SECONDS, ask, demo, ids, requests

from ferrule.engine.guests import environments
from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.guest import Launch, Program, Room
from ferrule.engine.guests.members import Members
from ferrule.engine.guests.registry import guest_named
from ferrule.engine.guests.vllm.guest import VllmGuest
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import EngineOptions
from ferrule.engine.types import Constraint, SamplingParams
from ferrule.errors import ConfigError, PlanError, RequestError
from ferrule.model import demo_path
from ferrule.plan import make_plan

HERE = Path(__file__).parent


@dataclass
class Hosts:
    """Stands for a lab of two hosts: what is started on them runs here."""

    names = ("one", "two")
    size = 2

    @dataclass
    class Cable:
        interface: str

    def address(self, host: int, toward: int) -> str:
        return f"10.77.0.{host + 1}"

    def between(self, one: int, other: int) -> tuple[Cable, ...]:
        return (self.Cable("cable0"), self.Cable("cable1"))

    def command(self, host: int, line: list[str]) -> list[str]:
        return line

    def env(self, host: int) -> dict[str, str]:
        return {"FERRULE_HOST_ID": self.names[host]}

    def new_port(self) -> int:
        return 4711


@dataclass
class Named:
    name: str


class Fake(VllmGuest):
    def version(self, program: Program) -> str:
        return "0.32.0"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"log": str(tmp_path / "log"), "refuse": 4, "lost": 5}))
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from fake_vllm import main\nmain(sys.argv[1:])\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "log"


def launch_of(folder: Path, lab: Any = None, sequences: int = 4, **options: Any) -> Launch:
    spec, _ = demo()
    program, asked = Program(folder / "python"), EngineOptions("tiny", 2, **options)
    plan = make_plan(spec, tensor=2)
    return Launch(program, demo_path(), "tiny", spec, plan, asked, Room(1024, sequences), 1, lab=lab)


def with_vllm(log: Path, body: Callable[[GuestEngine], Awaitable[None]], lab: Any = None) -> None:
    spec, tokenizer = demo()

    async def main() -> None:
        launch = launch_of(log.parent, lab)
        model = PreparedModel(demo_path(), spec, launch.plan, tokenizer, SamplingParams(), frozenset({END}), "")
        engine = GuestEngine(Fake(), launch, model)
        async with asyncio.timeout(SECONDS):
            try:
                await engine.load()
                await body(engine)
            finally:
                await engine.close()

    asyncio.run(main())


def test_answers(log: Path) -> None:
    async def body(engine: GuestEngine) -> None:
        assert engine.max_context == CONTEXT  # as it says
        assert ids(await ask(engine, [1, 10])) == answer([1, 10], 40)
        ended = await ask(engine, [3, 10])
        assert ids(ended) == [*answer([3, 10], 3), END]
        assert ended[-1].finish == "stop"
        (first, *_) = await ask(engine, [1, 10], replace(GREEDY, logprobs=1))
        assert (first.logprob, first.top) == (-first.id / 100, ((first.id, -first.id / 100),))
        with pytest.raises(RequestError, match="vllm: no such thing"):
            await ask(engine, [4])
        with pytest.raises(RequestError, match="the engine vllm does not do this"):
            await ask(engine, [1], replace(GREEDY, constraint=Constraint("lark", "start: /a/")))

    with_vllm(log, body)


def test_an_answer_outlives_the_process_of_the_engine(log: Path) -> None:
    """Of which vLLM's server tells its clients, before it ends."""

    async def body(engine: GuestEngine) -> None:
        assert ids(await ask(engine, [5, *range(8)])) == answer([5, *range(8)], 40)
        assert engine.health().recoveries == 1

    with_vllm(log, body)
    assert [len(each["prompt"]) for each in requests(log)] == [9, 12]


def test_keys_and_values_have_room_for_what_runs_at_once(tmp_path: Path) -> None:
    """A rank has half of the heads, and blocks of 128 tokens, one more than a sequence fills."""
    spec, _ = demo()

    async def room(**options: Any) -> int:
        async with Fake().begun(launch_of(tmp_path, **options)) as command:
            return int(command.line[command.line.index("--kv-cache-memory-bytes") + 1])

    assert asyncio.run(room(sequences=1)) == int(spec.cache_bytes(1024 + 128) / 2)
    assert asyncio.run(room(sequences=3)) == int(spec.cache_bytes(1024 + 128) / 2 * 3)
    assert asyncio.run(room(sequences=1, dtype="float32")) == int(spec.cache_bytes(1024 + 128))


def test_what_it_counts_for_penalties_has_to_be_made_anew() -> None:
    guest = VllmGuest()
    assert guest.resumes(GREEDY)
    assert guest.resumes(replace(GREEDY, repetition_penalty=1.1))
    assert not guest.resumes(replace(GREEDY, presence_penalty=1.0))
    assert not guest.resumes(replace(GREEDY, frequency_penalty=1.0))


def test_a_process_on_another_host_is_killed(log: Path) -> None:
    """All of it starts again, at once, and an answer that was under way goes on."""

    async def body(engine: GuestEngine) -> None:
        assert [rank.host for rank in engine.ranks] == ["one", "two"]
        while not (followers := [each["pid"] for each in requests(log) if "host" in each]):
            await asyncio.sleep(0.01)
        made = []
        async with aclosing(engine.generate([1, 10], replace(GREEDY, max_tokens=200))) as stream:
            async for token in stream:
                made.append(token.id)
                if len(made) == 20:
                    os.kill(followers[0], signal.SIGKILL)
        assert made == answer([1, 10], 200)
        assert engine.health().recoveries == 1
        assert "on host 1 was killed by SIGKILL" in engine.health().last_recovery.cause

    with_vllm(log, body, Hosts())
    told = [each for each in requests(log) if "prompt" in each]
    assert [len(each["prompt"]) > 2 for each in told] == [False, True]
    assert len({each["pid"] for each in told}) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "cuda"}, "--device cuda"),
        ({"tensor": 2, "shares": (2.0, 1.0)}, "--shares"),
    ],
)
def test_what_it_does_not_run(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Exception, match=told):
        VllmGuest().check(demo_path(), demo()[0], EngineOptions("tiny", **options))
    with pytest.raises(ConfigError, match="is a file"):
        VllmGuest().check(demo_path() / "config.json", demo()[0], EngineOptions("tiny"))


@pytest.mark.parametrize("hosts", [("a", None), ("a", "b"), (None, None)])
def test_its_server_is_on_this_host_of_a_cluster(tmp_path: Path, hosts: tuple[str | None, ...]) -> None:
    """tests/launch/test_vllm_cluster.py has it on two."""
    members = Members(cast(Any, None), tuple(None if name is None else cast(Any, Named(name)) for name in hosts))

    async def begin() -> None:
        async with Fake().begun(replace(launch_of(tmp_path), members=members)):
            pass

    with pytest.raises(PlanError, match="the first of --hosts is this one"):
        asyncio.run(begin())


def test_it_is_found_by_its_name_once_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    guest = guest_named("vllm")
    assert guest.find() is None
    assert guest.install == "ferrule engines install vllm"
    ours = environments.environment_of("vllm")
    ours.record.parent.mkdir(parents=True)
    ours.record.write_text("{}")
    assert guest.find() is None
