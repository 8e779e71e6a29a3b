"""Restart policy: when to start ranks again, and when to give up. Pure: the caller passes the time in."""

from __future__ import annotations

import re
from collections import deque

from ferrule.engine.host.placement import Loss
from ferrule.errors import AuthError, ConfigError, ModelError, PlanError

MOST_CRASHES = 6
CRASH_SECONDS = 300.0
"""A model fails for good after `MOST_CRASHES` crashes with the same cause within so many seconds. Cables and hosts that
are lost do not count, nor do crashes for which a request was given up."""
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before the first attempt to bring a model back, before the second and so on; the last for all others."""
INCURABLE = (ModelError, PlanError, ConfigError, AuthError)
"""Errors that another start cannot cure."""


def pause(attempt: int) -> float:
    """Seconds before attempt 0, 1, 2..."""
    return PAUSES[min(attempt, len(PAUSES) - 1)]


class RestartPolicy:
    """Counts recent crashes by their cause."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    def hopeless(self, loss: Loss, now: float) -> str | None:
        """Note a loss at ``now``, in seconds of a clock that only runs forward. Why no start can help, or None."""
        if isinstance(loss.error, INCURABLE) and not loss.devices:  # another device may do
            return str(loss.error)
        if not loss.crashed:
            return None
        times = self._times.setdefault(_kind(loss), deque())
        times.append(now)
        while now - times[0] > CRASH_SECONDS:
            times.popleft()
        if len(times) < MOST_CRASHES:
            return None
        return f"{loss.error}; this happened {len(times)} times within {times[-1] - times[0]:.0f} s"

    def explained(self) -> None:
        """A request is to blame for those so far."""
        self._times.clear()


def _kind(loss: Loss) -> str:
    """Common part of crashes of one cause: the words, without a rank's number and its last words."""
    return type(loss.error).__name__ + re.sub(r"\d+", "#", str(loss.error).partition("; its last words")[0])
