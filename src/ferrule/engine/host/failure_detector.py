"""Failure detector for ranks by their heartbeats: some exist and do nothing, stopped or hanging in the kernel.

Pure: the caller passes the time in.
"""

from __future__ import annotations

TICK_SECONDS = 1.0
SILENT_SECONDS = 10.0
"""Without a sign of life from a rank that was ready. Ranks of one group notice each other's silence much earlier; this
is for those that have no peer, or none that runs."""


class FailureDetector:
    """Failure detector by the seconds since each rank sent something. ``patience``: how long that may be until it is
    ready, in seconds.

    It is counted in ticks of the watcher, and each counts for two at most: where the watcher itself stood still, as
    with a whole machine that was suspended or has no processor to spare, that is not the ranks' fault.
    """

    def __init__(self, ranks: int, patience: float) -> None:
        self._silent = [0.0] * ranks
        self._limits = [patience] * ranks

    def heard(self, rank: int) -> None:
        self._silent[rank] = 0.0

    def expect(self, rank: int, patience: float) -> None:
        """It starts anew."""
        self._silent[rank], self._limits[rank] = 0.0, patience

    def ready(self, rank: int) -> None:
        self._limits[rank] = SILENT_SECONDS

    def tick(self, elapsed: float) -> dict[int, float]:
        """``elapsed`` seconds went by. The ranks that were silent for too long, and how long."""
        counted = min(elapsed, 2 * TICK_SECONDS)
        self._silent = [silent + counted for silent in self._silent]
        return {
            rank: silent
            for rank, (silent, limit) in enumerate(zip(self._silent, self._limits, strict=True))
            if silent > limit
        }
