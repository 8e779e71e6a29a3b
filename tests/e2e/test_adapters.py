"""Adapters beside their base on real ranks: answers as PEFT makes them, alone and together, also after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tiny_adapters import ATTENTION, DENSE, adapted, greedy, make_adapter

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start
from ferrule.engine.options import Adapter
from ferrule.engine.source import DEMO
from ferrule.model import demo_path

TOKENS, KILLED_AT = 32, 12
PROMPTS = {
    None: [5, 17, 99, 42, 8, 77, 23, 64, 12],
    "one": [11, 3, 120],
    "two": [5, 17, 99, 42, 8, 77, 23, 64, 12, 90, 31],
}


async def answers(engine: LocalEngine, victim: int | None = None) -> dict[str | None, list[int]]:
    """With each adapter and without one, all at once."""

    async def one(adapter: str | None) -> list[int]:
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, adapter=adapter)
        made: list[int] = []
        async for token in engine.generate(PROMPTS[adapter], params):
            made.append(token.id)
            if victim is not None and adapter == "one" and len(made) == KILLED_AT:
                os.kill(engine.ranks[victim].pid, signal.SIGKILL)
        return made

    return dict(zip(PROMPTS, await asyncio.gather(*map(one, PROMPTS)), strict=True))


@pytest.mark.parametrize(
    "split",
    [
        pytest.param((2, 1), marks=pytest.mark.slow),
        *(pytest.param(split, marks=pytest.mark.soak) for split in ((1, 1), (1, 2), (2, 2))),
    ],
)
def test_answers_are_those_of_peft_also_after_a_kill(split: tuple[int, int], tmp_path: Path) -> None:
    base = demo_path()
    paths = {
        "one": make_adapter(base, tmp_path / "one", ATTENTION + DENSE),
        "two": make_adapter(base, tmp_path / "two", ("q_proj", "v_proj"), use_rslora=True),
    }
    expected = {
        adapter: greedy(adapted(base, None if adapter is None else paths[adapter]), prompt, TOKENS)
        for adapter, prompt in PROMPTS.items()
    }
    options = EngineOptions(
        DEMO, *split, dtype="float32", threads=1, adapters=tuple(Adapter(n, str(p)) for n, p in paths.items())
    )

    async def body() -> None:
        engine = await start(options)
        try:
            assert engine.adapters == ("one", "two")
            assert await answers(engine) == expected
            assert await answers(engine, victim=engine.plan.world_size - 1) == expected
            assert engine.health().recoveries == 1
        finally:
            await engine.close()

    asyncio.run(body())
