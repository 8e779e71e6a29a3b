"""Ranks of a tensor split that are left when one dies: they go on in the same processes, with what they have loaded."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start

pytestmark = pytest.mark.slow
PROMPTS = (tuple(range(3, 140)), (7, 9, 11))
TOKENS = 60
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)


async def answers(engine: LocalEngine, victim: int | None = None) -> list[list[int]]:
    """Of all prompts at once; a rank is killed in the midst of them."""

    async def one(number: int) -> list[int]:
        made: list[int] = []
        async for token in engine.generate(PROMPTS[number], GREEDY):
            made.append(token.id)
            if victim is not None and number == 0 and len(made) == TOKENS // 3:
                os.kill(engine.ranks[victim].pid, signal.SIGKILL)
        return made

    return list(await asyncio.gather(*map(one, range(len(PROMPTS)))))


def test_each_rank_in_turn_dies_and_the_other_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, where rounding does not decide between tokens; with blocks on disk, which are found again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def body() -> None:
        options = EngineOptions("demo", tensor=2, dtype="float32", self_test=False, threads=1, prefix_disk=1 << 24)
        engine = await start(options)
        try:
            whole = await answers(engine)
            for victim in (0, 1):
                before = [rank.pid for rank in engine.ranks]
                assert await answers(engine, victim) == whole
                assert [rank.pid == pid for rank, pid in zip(engine.ranks, before, strict=True)] == [
                    rank != victim for rank in (0, 1)
                ]
                last = engine.health().last_recovery
                assert last is not None
                assert (last.kept, last.requests) == ((1 - victim,), len(PROMPTS))
        finally:
            await engine.close()

    asyncio.run(body())
