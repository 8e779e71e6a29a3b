"""Processes for prompts beside those for answers: what they say together, and when the first are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from ferrule.engine import Engine, EngineOptions, SamplingParams, start
from ferrule.engine.apart.start import start_apart

pytestmark = pytest.mark.slow

OPTIONS = EngineOptions("demo", dtype="float32", threads=1, self_test=False)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPTS = [[3 + step * at % 199 for at in range(400)] for step in (1, 5, 7, 11)]
SECONDS = 240.0


async def answer(engine: Engine, prompt: Sequence[int]) -> list[int]:
    return [token.id async for token in engine.generate(prompt, GREEDY)]


async def whole_answers() -> list[list[int]]:
    engine = await start(OPTIONS)
    try:
        return [await answer(engine, prompt) for prompt in PROMPTS]
    finally:
        await engine.close()


@pytest.mark.parametrize(("fault", "ranks", "device"), [(signal.SIGKILL, 2, "cpu"), (signal.SIGSTOP, 1, "emulated:0")])
def test_answers_go_on_whatever_becomes_of_the_ranks_for_prompts(
    fault: signal.Signals, ranks: int, device: str
) -> None:
    async def run() -> None:
        expected = await whole_answers()
        engine = await start_apart(OPTIONS, ranks, device=device)
        try:
            await engine.joined(SECONDS)
            assert await answer(engine, PROMPTS[0]) == expected[0]
            use = engine.hand_over
            assert (use.prompts, use.tokens, use.failed) == (1, 384, 0)
            begun = asyncio.create_task(answer(engine, PROMPTS[1]))
            await asyncio.sleep(0)
            os.kill(engine.prompts.ranks[0].pid, fault)
            assert await begun == expected[1]
            assert await answer(engine, PROMPTS[2]) == expected[2]
            assert engine.health().recoveries == 0
            async with asyncio.timeout(SECONDS):
                while engine.hand_over.joined and engine.prompts.health().recoveries == 0:
                    await asyncio.sleep(0.05)
            await engine.joined(SECONDS)
            before = engine.hand_over.prompts
            assert await answer(engine, PROMPTS[3]) == expected[3]
            assert engine.hand_over.prompts == before + 1
        finally:
            await engine.close()

    asyncio.run(run())
