"""The prefix cache of real ranks: what prompts have in common comes from memory, and from disk after all ranks were
started again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start

TOKENS, KILLED_AT, BLOCK = 20, 10, 64
PROMPT = [3 + 7 * place % 2900 for place in range(600)]
SHARED = BLOCK * ((len(PROMPT) - 1) // BLOCK)
FILES = "ferrule/prefix/rank-[01]/*/" + "?" * 32
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)


async def asked(engine: LocalEngine, prompt: list[int], *, kill: bool = False) -> tuple[list[int], int | None]:
    """Its answer, and how many tokens of the prompt were not computed. ``kill``: a rank dies meanwhile."""
    made: list[int] = []
    cached = None
    async for token in engine.generate(prompt, GREEDY):
        cached = token.cached if token.cached is not None else cached
        made.append(token.id)
        if kill and len(made) == KILLED_AT:
            os.kill(engine.ranks[-1].pid, signal.SIGKILL)
    return made, cached


@pytest.mark.slow
def test_a_prompt_is_computed_once_also_where_all_ranks_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def body() -> None:
        disk = EngineOptions("demo", 2, dtype="float32", threads=1, self_test=False, prefix_disk=1 << 26)
        engine = await start(disk)
        try:
            first, cached = await asked(engine, PROMPT)
            assert cached == 0
            assert await asked(engine, PROMPT) == (first, SHARED)
            assert await asked(engine, PROMPT, kill=True) == (first, SHARED), "it goes on after the ranks were lost"
            assert engine.health().recoveries == 1
            _, cached = await asked(engine, [*PROMPT[:400], 5, 6, 7])
            assert cached == 400 // BLOCK * BLOCK
            used = engine.health().prefix
            assert used is not None
            assert used.stored == used.tokens >= SHARED
            assert used.hits == SHARED + cached, "of the answer that went on, and of the last one"
            async with asyncio.timeout(30):  # they are written in the background
                while len(list(tmp_path.glob(FILES))) < 2 * used.stored // BLOCK:
                    await asyncio.sleep(0.05)
        finally:
            await engine.close()

    asyncio.run(body())


@pytest.mark.slow
def test_ranks_that_share_out_pages_keep_theirs_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = EngineOptions("demo", dtype="float32", threads=1)
    two = EngineOptions("demo", context_parallel=2, dtype="float32", threads=1, prefix_disk=1 << 26)

    async def body() -> None:
        engine = await start(one)
        try:
            expected, _ = await asked(engine, PROMPT)
        finally:
            await engine.close()
        engine = await start(two)
        try:
            assert engine.plan.strategy == "context"
            assert await asked(engine, PROMPT) == (expected, 0)
            assert await asked(engine, PROMPT, kill=True) == (expected, SHARED), "it goes on after a rank was lost"
            assert engine.health().recoveries == 1
            async with asyncio.timeout(30):  # they are written in the background
                while len(list(tmp_path.glob(FILES))) < 2 * SHARED // BLOCK:
                    await asyncio.sleep(0.05)
        finally:
            await engine.close()
        engine = await start(two)
        try:
            assert await asked(engine, PROMPT) == (expected, SHARED), "each rank has read its pages from disk"
        finally:
            await engine.close()

    asyncio.run(body())
