"""Migration: while a model runs, keep standby processes ready, and decide when it moves to a better place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ferrule.engine.host.placement import Deployment, Planner, RankStarter
from ferrule.engine.options import RankOptions
from ferrule.errors import FerruleError

PREPARE_SECONDS = 5.0
"""After the model is ready, so that the next start's preparations do not take processors from its first answers."""
LOOK_SECONDS = 10.0
"""Between the looks at whether the preparations are still there, and whether there is a better place."""
READY_SECONDS = 30.0
"""Seconds that a move waits for its preparations."""
GRACE_SECONDS = 60.0
"""Seconds that a move waits, after that, for a moment in which no request runs. Then those that run have a pause."""
STEP_SECONDS = 0.2
LONGEST_LOAD = 120.0
"""A model that took longer to load stays where it is: requests would wait for too long."""
AGAIN_SECONDS = 600.0
"""After a move that failed, before the same one is tried again."""
MOVE_WORTH = 1.2
"""Where the planner chose, it must expect tokens to come so many times as fast elsewhere."""

_log = logging.getLogger(__name__)


class MigrationMonitor:
    """Waits for a better placement and a good moment to move there. ``idle``: whether no request runs now."""

    def __init__(
        self,
        planner: Planner,
        options: RankOptions,
        idle: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planner, self._options, self._idle, self._clock = planner, options, idle, clock
        self._failed: list[tuple[RankStarter, str, float]] = []

    async def until_better(self, now: Deployment, load_seconds: float) -> Deployment:
        """Watch a deployment that took ``load_seconds`` to load; returns one to move to, when the moment is good."""
        await asyncio.sleep(PREPARE_SECONDS)
        while True:
            better = await self._better(now) if load_seconds <= LONGEST_LOAD else None
            if better is None:
                await _prepared(now)
            else:
                await self._good_moment(better)
                if await self._better(now) == better:  # its hosts are still there
                    return better
            await asyncio.sleep(LOOK_SECONDS)

    def failed(self, deployment: Deployment) -> None:
        """It could not be moved there."""
        self._failed.append((deployment.starter, deployment.options.device, self._clock()))

    async def _better(self, now: Deployment) -> Deployment | None:
        try:
            better = await self._planner.better(self._options, now)
        except Exception:  # noqa: BLE001 - what only makes things better must not end them
            _log.exception("whether there is a better place for the model cannot be told")
            return None
        self._failed = [each for each in self._failed if self._clock() - each[-1] < AGAIN_SECONDS]
        if better is not None and (better.starter, better.options.device) in [each[:2] for each in self._failed]:
            return None
        return better

    async def _good_moment(self, better: Deployment) -> None:
        deadline = self._clock() + READY_SECONDS
        while not await _prepared(better) and self._clock() < deadline:
            await asyncio.sleep(STEP_SECONDS)
        deadline = self._clock() + GRACE_SECONDS
        while not self._idle() and self._clock() < deadline:
            await asyncio.sleep(STEP_SECONDS)


async def _prepared(deployment: Deployment) -> bool:
    if deployment.standby is None:
        return True
    try:
        return await deployment.standby.prepare(deployment)
    except FerruleError as error:  # without, a start takes longer, and is no worse
        _log.warning("no standby processes: %s", error)
        return True
