"""Ranks whose weights are on disk answer as those do that have them in memory, also after a rank was lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ferrule.engine import EngineOptions, SamplingParams, start

TOKENS, KILLED_AT = 16, 6
PROMPT = [3 + 7 * place % 2900 for place in range(40)]
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)


@pytest.mark.slow
def test_answers_are_the_same_over_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_MODEL_CACHE", str(tmp_path))

    async def answer(stream: int | None, *, kill: bool = False) -> list[int]:
        engine = await start(
            EngineOptions("demo", 1, 2, dtype="float32", threads=1, self_test=False, stream_weights=stream)
        )
        try:
            made: list[int] = []
            async for token in engine.generate(PROMPT, GREEDY):
                made.append(token.id)
                if kill and len(made) == KILLED_AT:
                    os.kill(engine.ranks[-1].pid, signal.SIGKILL)
            health = engine.health()
            assert health.recoveries == int(kill)
            assert (health.streamed is not None) == (stream is not None)
            if stream is not None:
                assert health.streamed is not None
                assert health.streamed.read > health.streamed.each_step > 0
                assert all(info.streamed and info.weight_bytes <= stream for info in engine.ranks)
                assert len(list(tmp_path.glob("streamed/rank-[01]/*/weights"))) == 2, "both starts read these"
            return made
        finally:
            await engine.close()

    assert asyncio.run(answer(6_000_000, kill=True)) == asyncio.run(answer(None))
