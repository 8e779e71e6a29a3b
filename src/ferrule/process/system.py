"""What the launcher needs to know of, and do to, processes; each for every system as well as it goes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether our child has ended, if possible without reaping it."""
    if not hasattr(os, "waitid"):  # Python before 3.13 on macOS
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # the group is empty (macOS reports EPERM when only a zombie is left)


def exit_fds(pids: Sequence[int]) -> list[int | None]:
    """Per process a descriptor that becomes readable when it ends, where the system has such a thing (Linux)."""
    fds: list[int | None] = [None] * len(pids)
    if sys.platform == "linux":
        for index, pid in enumerate(pids):
            try:
                fds[index] = os.pidfd_open(pid)
            except OSError:
                continue  # already reaped, or a kernel before 5.3: `poll` finds out
    return fds


def sleep_until_readable(fds: Sequence[int], seconds: float | None) -> None:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    poller.poll(None if seconds is None else seconds * 1000)
