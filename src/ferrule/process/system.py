"""Process queries and signals by the kernel's interfaces; each for every system as well as it goes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 0.01


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether our child has ended, if possible without reaping it."""
    if not hasattr(os, "waitid"):  # Python before 3.13 on macOS
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_group(pid: int, number: int) -> None:
    """To all processes of the group that ``pid`` leads."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # the group is empty (macOS reports EPERM when only a zombie is left)


def exit_fd(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends, where the system has such a thing (Linux)."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # already reaped, or a kernel before 5.3: `has_exited` finds out


def when_ended(process: subprocess.Popen[bytes], then: Callable[[int], None]) -> None:
    """End of a child: when it has ended, kill the rest of its group, reap it, and call ``then`` with its status; by the
    running event loop."""
    import asyncio  # which takes longer to load than a rank's first sign of life may take

    loop = asyncio.get_running_loop()
    watch = exit_fd(process.pid)

    def look() -> None:
        if watch is None and not has_exited(process):
            loop.call_later(_LOOK_SECONDS, look)
            return
        if watch is not None:
            loop.remove_reader(watch)
            os.close(watch)
        signal_group(process.pid, signal.SIGKILL)  # its own children; its number is not free before `wait`
        then(process.wait())

    if watch is None:
        loop.call_soon(look)
    else:
        loop.add_reader(watch, look)


async def end_groups(pids: Callable[[], Collection[int]], grace: float, patience: float) -> None:
    """SIGTERM to the groups that ``pids`` lead, SIGKILL to those that are left after ``grace`` seconds.

    ``pids``: those that have not been reaped, which `when_ended` does. Returns when there are none any more, or
    ``patience`` seconds after the SIGKILL.
    """
    import asyncio

    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, patience)):
        for pid in pids():
            signal_group(pid, number)
        deadline = time.monotonic() + seconds
        while pids() and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_SECONDS)


@cache
def boot_id() -> str:
    """Tells this boot of this machine's kernel from all others; containers and emulated hosts of a machine share it."""
    told = Path("/proc/sys/kernel/random/boot_id")
    if told.exists():
        return told.read_text().strip()
    # macOS
    command = ["sysctl", "-n", "kern.bootsessionuuid"]
    session = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()
    return session or socket.gethostname()
