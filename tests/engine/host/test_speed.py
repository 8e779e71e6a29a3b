"""Speed of a loaded model, from the times at which its tokens came."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule.engine.host import speed


def measured(monkeypatch: pytest.MonkeyPatch, times: list[float], max_context: int = 512) -> tuple[Any, list[Any]]:
    """Result of `measure_speed` where tokens come at ``times``, and what was asked."""
    clock = iter([0.0, *times])
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    asked = []

    async def generate(prompt: list[int], params: Any) -> Any:
        asked.append((len(prompt), params.max_tokens))
        for _ in range(min(len(times), params.max_tokens)):
            yield SimpleNamespace()

    engine = SimpleNamespace(max_context=max_context, vocab_size=8, generate=generate)
    return asyncio.run(speed.measure_speed(engine)), asked  # type: ignore[arg-type]


def test_tokens_that_come_in_one_go_count_as_those_that_come_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [0.5 + token * 0.05 for token in range(24)]
    bursts = [0.5, 0.55, *[0.55 + 0.2 * (1 + token // 4) for token in range(22)]]
    for times, wanted in ((alone, 0.05), (bursts, (bursts[-1] - 0.55) / 22)):
        found, asked = measured(monkeypatch, times)
        assert found == pytest.approx(wanted)
        assert 0.045 < found < 0.06
        assert asked == [(speed.PROMPT, speed.TOKENS)]


def test_slow_models_are_measured_by_a_few_tokens_and_short_ones_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = measured(monkeypatch, [5.0, 7.0, 9.5, 12.0])
    assert found == pytest.approx(2.5)
    assert measured(monkeypatch, [], max_context=3) == (None, [])
