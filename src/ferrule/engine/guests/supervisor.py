"""Keep a guest running: start it, notice how it ends, and start it again while that helps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ferrule.engine.guests.guest import Guest, Launch
from ferrule.engine.guests.running import Running, bring_up
from ferrule.engine.host.placement import Loss
from ferrule.engine.host.restart_policy import pause
from ferrule.engine.host.supervision import Owner, Supervision
from ferrule.engine.types import Recovery
from ferrule.errors import EngineError, FerruleError, ModelUnavailable

_log = logging.getLogger(__name__)


class Served(Owner, Protocol):
    """Owner of the requests for the guest."""

    def went_up(self, running: Running) -> int:
        """It can be asked. How many requests go on that were interrupted."""
        ...


class GuestSupervisor(Supervision):
    """Supervision of a guest's processes."""

    def __init__(
        self, guest: Guest, launch: Launch, served: Served, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(served, clock)
        self.running: Running | None = None
        self._guest, self._launch, self._served = guest, launch, served
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait until it is ready. Raises the cause where it fails; nothing of it is left then."""
        running = await bring_up(self._guest, self._launch)
        self._went_up(running)
        self._task = asyncio.create_task(self._keep(running), name=f"supervisor of {self._guest.name}")

    async def close(self) -> None:
        """End it. Safe to call twice."""
        self._enter("closed", None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.running is not None:
            running, self.running = self.running, None
            await running.stop()

    async def _keep(self, running: Running) -> None:
        try:
            while True:
                loss = await running.lost()
                self.last = Recovery(str(loss.error), time.time())
                self._go_down(loss)
                await running.stop()
                self._check_hope(loss)
                running = await self._bring_back()
        except FerruleError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - requests must not wait for a supervisor that is gone
            _log.exception("the supervisor of %s failed", self._guest.name)
            self._fail(EngineError(f"{type(error).__name__}: {error}; please report this with the server's log"))

    async def _bring_back(self) -> Running:
        attempt = 0
        while True:
            await asyncio.sleep(pause(attempt))
            attempt += 1
            try:
                running = await bring_up(self._guest, self._launch)
            except ModelUnavailable as error:
                self._wait(error)
            except EngineError as error:
                self._check_hope(Loss(error, (0,), ("",), crashed=True))
            else:
                self._went_up(running)
                return running

    def _went_up(self, running: Running) -> None:
        self.running = running
        self._enter("ready", None)
        going_on = self._served.went_up(running)
        if self.last is not None and self.last.requests is None:
            self.recoveries += 1
            self.last = replace(self.last, seconds=time.time() - self.last.at, requests=going_on)
            _log.warning(
                "%s; it is back after %.1f s, and %d interrupted requests go on",
                self.last.cause,
                self.last.seconds,
                going_on,
            )

    def _go_down(self, loss: Loss) -> None:
        self.running = None
        self._down(loss)
