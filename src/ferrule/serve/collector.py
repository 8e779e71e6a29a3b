"""Garbage collection in a server: rounds over everything hold up every request, so they wait for idle moments."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

THRESHOLDS: Final = (2000, 10, 300)
"""Of the three generations. With 1,000 connections a round over everything takes 60 ms of CPU time. By Python's own
thresholds (700, 10, 10) one came every 8 s; now it is every 8 minutes, if no idle moment comes before. Rounds over the
youngest take 4 ms, those over the second generation up to 20 ms, and all of them together less than before."""
IDLE_SECONDS: Final = 10.0
WORTH: Final = 30
"""Rounds of the second generation after which one over everything is worth while."""


def spare_requests() -> None:
    """Take what is there for good out of the collector's rounds, and make these rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


async def collect_when_idle(idle: Callable[[], bool], *, seconds: float = IDLE_SECONDS) -> None:
    """Collect what has been left, whenever it is enough and nothing is being computed. Never returns."""
    while True:
        await asyncio.sleep(seconds)
        if gc.get_count()[2] >= WORTH and idle():
            gc.collect()
