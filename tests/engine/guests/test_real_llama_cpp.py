"""llama.cpp itself, where it is on the PATH: its greedy answers are those of the built-in engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from gguf_models import write

from ferrule.engine import start
from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.guest import on_path
from ferrule.engine.guests.llama_cpp.guest import SERVER_NAMES, LlamaCpp
from ferrule.engine.guests.llama_cpp.worker import WORKER_NAMES
from ferrule.engine.guests.start import start_guest
from ferrule.engine.options import EngineOptions
from ferrule.engine.types import Constraint, Engine, SamplingParams
from ferrule.lab import Lab, pair

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(on_path(*SERVER_NAMES) is None, reason="llama-server is not on the PATH"),
]
needs_workers = pytest.mark.skipif(on_path(*WORKER_NAMES) is None, reason="rpc-server is not on the PATH")
PROMPTS = [[5, 6, 7, 8, 9, 20, 30], [40, 3], list(range(60, 110))]
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file, _ = write("llama", tmp_path_factory.mktemp("gguf") / "tiny")
    return str(file)


@pytest.fixture(scope="module")
def expected(model: str) -> list[list[int]]:
    async def main() -> list[list[int]]:
        engine = await start(options(model))
        try:
            return await asked(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def options(model: str, **more: object) -> EngineOptions:
    return EngineOptions(model, **({"dtype": "float32", "threads": 1} | more))


async def asked(engine: Engine) -> list[list[int]]:
    async def one(prompt: list[int]) -> list[int]:
        return [token.id async for token in engine.generate(prompt, GREEDY)]

    return list(await asyncio.gather(*map(one, PROMPTS)))


def with_guest(body, given: EngineOptions, lab: Lab | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(120):
            engine = await start_guest(LlamaCpp(), given, lab=lab)
            try:
                await body(engine)
            finally:
                await engine.close()

    asyncio.run(main())


def test_answers_are_those_of_the_built_in_engine(model: str, expected: list[list[int]]) -> None:
    """Also of one that goes on after the guest was killed; and probabilities, and JSON."""

    async def body(engine: GuestEngine) -> None:
        assert await asked(engine) == expected
        found = []
        async for token in engine.generate(PROMPTS[0], replace(GREEDY, logprobs=2)):
            assert token.logprob is not None
            assert token.top[0] == (token.id, token.logprob)
            found.append(token.id)
            if len(found) == 10:
                os.kill(engine.ranks[0].pid, signal.SIGKILL)
        assert found == expected[0]
        assert engine.health().recoveries == 1
        whole = [token async for token in engine.generate(PROMPTS[0], replace(GREEDY, max_tokens=None))]
        assert len(PROMPTS[0]) + len(whole) == engine.max_context
        schema = Constraint("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
        tokens = [token.id async for token in engine.generate(PROMPTS[1], SamplingParams(seed=1, constraint=schema))]
        assert engine.tokenizer.decode(tokens).strip().startswith("{")

    with_guest(body, options(model))


@needs_workers
def test_two_stages_give_the_same(model: str, expected: list[list[int]]) -> None:
    async def body(engine: GuestEngine) -> None:
        assert await asked(engine) == expected
        before = engine.ranks[0].pid
        ours = psutil.Process().children(recursive=True)
        (*_, worker) = [each for each in ours if Path(each.exe()).name in WORKER_NAMES]
        worker.kill()
        while engine.health().recoveries == 0:
            await asyncio.sleep(0.02)
        assert engine.ranks[0].pid != before
        assert await asked(engine) == expected

    with_guest(body, options(model, pipeline=2))


@needs_workers
@pytest.mark.usefixtures("emulated_hosts")
def test_stages_on_two_hosts_meet_in_a_tunnel(model: str, expected: list[list[int]]) -> None:
    """What a worker listens at can be reached from its own host alone, but for the tunnel."""
    with Lab(pair()) as lab:

        async def body(engine: GuestEngine) -> None:
            assert await asked(engine) == expected
            assert [rank.host for rank in engine.ranks] == ["host0", "host1"]
            told = subprocess.run(lab.command(1, ["ss", "-Hltnp"]), capture_output=True, text=True, check=True).stdout
            listening = {line.split()[3].rpartition(":")[0]: line for line in told.splitlines()}
            assert set(listening) == {"127.0.0.1", lab.address(1, 0)}
            assert "rpc-server" in listening["127.0.0.1"]
            assert "python" in listening[lab.address(1, 0)]

        with_guest(body, options(model, pipeline=2), lab)
        assert not lab.processes()
