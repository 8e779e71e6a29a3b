"""CPU time of other programs on this machine while a benchmark runs."""

from __future__ import annotations

import time

import psutil


class Bystanders:
    """This process and all that descend from it are measured; others disturb them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._time, self._busy, self._own = time.monotonic(), _busy(), _own()

    def share(self) -> float:
        """Of all processors since `begin`: what others had, other virtual machines (steal) included."""
        others = (_busy() - self._busy) - (_own() - self._own)
        return max(0.0, others) / (time.monotonic() - self._time) / (psutil.cpu_count() or 1)


def _busy() -> float:
    """Seconds of all processors, without interrupts, that sending and receiving causes."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "steal", 0.0))


def _own() -> float:
    process = psutil.Process()
    seconds = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system
    return seconds
