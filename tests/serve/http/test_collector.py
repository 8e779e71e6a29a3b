"""Garbage collection of a server: rare rounds over everything, and in idle moments if it can be."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ferrule.serve import collector
from ferrule.serve.collector import WORTH, collect_when_idle, spare_requests


def test_everything_is_collected_when_nothing_is_computed_and_it_is_worth_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, busy, collected, looks = WORTH - 1, True, 0, 0

    class Garbage:
        @staticmethod
        def get_count() -> tuple[int, int, int]:
            return 0, 0, left

        @staticmethod
        def collect() -> None:
            nonlocal collected, left
            collected, left = collected + 1, 0

    def idle() -> bool:
        nonlocal looks
        looks += 1
        return not busy

    async def body() -> None:
        nonlocal left, busy, looks
        task = asyncio.create_task(collect_when_idle(idle, seconds=0))
        for now_left, now_busy, expected in ((WORTH - 1, False, (0, 0)), (WORTH, True, (0, 1)), (WORTH, False, (1, 1))):
            left, busy, looks = now_left, now_busy, 0
            for _ in range(20):
                await asyncio.sleep(0)
            assert (collected, min(looks, 1)) == expected
        task.cancel()

    monkeypatch.setattr(collector, "gc", Garbage)
    asyncio.run(body())


def test_what_is_there_for_good_is_left_out_of_rare_rounds() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        spare_requests()
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold() == collector.THRESHOLDS
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
