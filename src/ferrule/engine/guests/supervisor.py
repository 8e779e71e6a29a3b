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
from ferrule.engine.host.restart_policy import RestartPolicy, pause
from ferrule.engine.types import Recovery, State
from ferrule.errors import EngineError, FerruleError, ModelUnavailable

_log = logging.getLogger(__name__)


class Served(Protocol):
    """Who has requests for the guest."""

    def went_up(self, running: Running) -> int:
        """It can be asked. How many requests go on that were interrupted."""
        ...

    def went_down(self, loss: Loss) -> bool:
        """It is gone. Whether a request is to blame, which is given up."""
        ...

    def failed(self, error: FerruleError) -> None:
        """It will not be back."""
        ...


class GuestSupervisor:
    """States: loading → ready → recovering → ready, or waiting while it cannot be started, or failed; closed."""

    def __init__(
        self, guest: Guest, launch: Launch, served: Served, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state: State = "loading"
        self.error: FerruleError | None = None
        self.since = time.time()
        self.recoveries = 0
        self.last: Recovery | None = None
        self.running: Running | None = None
        self._guest, self._launch, self._served, self._clock = guest, launch, served, clock
        self._restarts = RestartPolicy()
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
        self._enter("recovering", loss.error)
        if self._served.went_down(loss):
            self._restarts.explained()

    def _check_hope(self, loss: Loss) -> None:
        """Note a loss. Raises an error where no start helps."""
        reason = self._restarts.hopeless(loss, self._clock())
        if reason is not None:
            raise EngineError(reason)

    def _wait(self, error: FerruleError) -> None:
        if self.state != "waiting":
            _log.warning("%s; the model cannot come back yet: %s", self.last.cause if self.last else "", error)
        self._enter("waiting", error)

    def _fail(self, error: FerruleError) -> None:
        self._enter("failed", error)
        self._served.failed(error)

    def _enter(self, state: State, error: FerruleError | None) -> None:
        if self.state == "closed":
            return
        if state != self.state:
            self.since = time.time()
        self.state, self.error = state, error
