"""Child subreaper (Linux): all that a process starts belongs to it, also what detaches itself, and ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_REAP_SECONDS = 5.0


def adopt_orphans() -> None:
    """From now on, what our descendants leave behind becomes our child."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    """Of this process's main thread; none where the system does not tell."""
    file = Path(f"/proc/self/task/{os.getpid()}/children")
    return list(map(int, file.read_text().split())) if file.exists() else []


def kill_orphans() -> None:
    """Kill all children, then theirs, which become ours, and so on until none is left."""
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline and (pids := _children()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def reap_orphans(own: int) -> None:
    """Take note of the end of those that are not our own child ``own``."""
    for pid in _children():
        if pid != own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
