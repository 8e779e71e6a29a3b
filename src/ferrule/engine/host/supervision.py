"""State of a model that is kept running: lost, waited for, back, or given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from ferrule.engine.host.placement import Loss
from ferrule.engine.host.restart_policy import RestartPolicy
from ferrule.engine.types import Recovery, State
from ferrule.errors import EngineError, FerruleError

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Owner of the requests that the model answers."""

    def went_down(self, loss: Loss) -> bool:
        """The model is gone. Returns whether a request is to blame, and given up."""
        ...

    def failed(self, error: FerruleError) -> None:
        """The model does not come back."""
        ...


class Supervision:
    """States: loading → ready → recovering → ready, or waiting while the model cannot be held, or failed; closed.
    ``since``: seconds since 1970; ``recoveries``: how often it came back; ``last``: of these, also one under way."""

    def __init__(self, owner: Owner, clock: Callable[[], float]) -> None:
        self.state: State = "loading"
        self.error: FerruleError | None = None
        self.since = time.time()
        self.recoveries = 0
        self.last: Recovery | None = None
        self._owner, self._clock, self._restarts = owner, clock, RestartPolicy()

    def _down(self, loss: Loss) -> None:
        self._enter("recovering", loss.error)
        if self._owner.went_down(loss):
            self._restarts.explained()

    def _check_hope(self, loss: Loss) -> None:
        """Note a loss. Raises an error where no start helps."""
        reason = self._restarts.hopeless(loss, self._clock())
        if reason is not None:
            raise EngineError(reason)

    def _wait(self, error: FerruleError) -> None:
        if self.state != "waiting":
            cause = self.last.cause if self.last else ""
            _log.warning("%s; the model cannot come back yet: %s", cause, error)
        self._enter("waiting", error)

    def _fail(self, error: FerruleError) -> None:
        self._enter("failed", error)
        self._owner.failed(error)

    def _enter(self, state: State, error: FerruleError | None) -> None:
        if self.state == "closed":
            return
        if state != self.state:
            self.since = time.time()
        self.state, self.error = state, error
