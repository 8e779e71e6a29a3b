"""The control loop of an agent: again and again it compares what runs with what the cluster wants, and acts on that."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from ferrule.cluster.peers import set_within

log = logging.getLogger(__name__)

TAKE_OVER_SECONDS = 5.0
"""Silence of a host after which another one does what the cluster wants of it."""
LOOK_SECONDS = 1.0
_PAUSES = (0.5, 2.0, 5.0, 15.0, 30.0)


def pause_after(failures: int) -> float:
    """Seconds before a process is started again that ended badly ``failures`` times before, and never worked since."""
    return _PAUSES[min(failures, len(_PAUSES) - 1)]


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """What is known of a process that is started again whenever it ends. ``running``: there is one; ``failures``: how
    often it ended badly since it last worked; ``again``: when to start it if not, by `time.monotonic`."""

    running: bool = False
    failures: int = 0
    again: float = 0.0

    def is_due(self, now: float) -> bool:
        return not self.running and now >= self.again

    def failed(self, now: float) -> Self:
        """It after it ended, or could not be started."""
        return replace(self, running=False, failures=self.failures + 1, again=now + pause_after(self.failures))


class ControlLoop(ABC):
    """`reconcile` is called every `LOOK_SECONDS`, and soon after `look`."""

    def __init__(self) -> None:
        self._loop: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @abstractmethod
    async def reconcile(self) -> None:
        """Do what is to be done now."""

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    def look(self) -> None:
        """Something has changed: a record, or which hosts answer."""
        self._news.set()

    async def _run(self) -> None:
        while True:
            try:
                await self.reconcile()
            except Exception:
                log.exception("%s cannot do what the cluster wants; it is tried again", type(self).__name__)
            await set_within(self._news, LOOK_SECONDS)
            self._news.clear()
