"""Answers about images go on after a rank was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from seeing_models import image, make, prompt_of
from test_vision_parity import by_transformers

from ferrule.engine import EngineOptions, ImagePrompt, LocalEngine, SamplingParams
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.prepare import prepare

pytestmark = pytest.mark.slow

TOKENS, KILLED_AT = 16, 8
PARAMS = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)


def test_an_answer_about_images_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    """Over two stages, of which the second has the driver. In float32: rounding does not decide between tokens."""
    make("qwen3_vl", tmp_path)
    prompt = prompt_of(tmp_path, [5, 17, image(40, 24, 1), 42, image(20, 60, 2, "JPEG"), 7])

    async def answer(engine: LocalEngine, prompt: ImagePrompt, victim: int | None = None) -> list[int]:
        made: list[int] = []
        async for token in engine.generate(prompt.tokens, PARAMS, prompt.images):
            made.append(token.id)
            if victim is not None and len(made) == KILLED_AT:
                os.kill(engine.ranks[victim].pid, signal.SIGKILL)
        return made

    async def body() -> None:
        options = EngineOptions(str(tmp_path), pipeline=2, dtype="float32", threads=1, batch_tokens=16)
        engine = LocalEngine(options, prepare(options), LocalPlanner(standby=False))
        try:
            await engine.load(None)
            assert "transformers" in engine.ranks[0].device
            expected, _ = by_transformers(tmp_path, prompt, TOKENS)
            assert await answer(engine, prompt) == expected
            beside = ImagePrompt((11, 12, 13), ())
            found = await asyncio.gather(answer(engine, prompt, victim=0), answer(engine, beside))
            assert found == [expected, by_transformers(tmp_path, beside, TOKENS)[0]]
            assert engine.health().recoveries == 1
        finally:
            await engine.close()

    asyncio.run(body())
