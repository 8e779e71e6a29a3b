"""Network namespaces without names: only a file descriptor holds one, so it ends with its holder, however that ends.

Linux only. A *thread* is in a namespace, and what it starts or opens meanwhile belongs to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ferrule.errors import LabError

ENTER = str(Path(__file__).with_name("_enter.py"))
"""The program that steps into a host and becomes another one."""

_CLONE_NEWNET = 0x40000000
_THREAD_NAMESPACE = "/proc/thread-self/ns/net"


class Namespace:
    """A network namespace of its own: no interface but a loopback that is down."""

    def __init__(self, *, ipv6: bool = False) -> None:
        self._fd: int | None = _create(ipv6)
        self.inode = os.fstat(self._fd).st_ino

    @property
    def path(self) -> str:
        """Path for other processes, for example ``nsenter --net=PATH``, as long as this process holds it."""
        return f"/proc/{os.getpid()}/fd/{self._held()}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is inside meanwhile: the sockets it makes and the processes it starts stay there."""
        with _entered(self._held()):
            yield

    def close(self) -> None:
        """Let go of it; the kernel removes it and its interfaces when no process or socket is left inside."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _held(self) -> int:
        if self._fd is None:
            raise LabError("this network namespace is closed")
        return self._fd


@contextmanager
def enter_path(path: str) -> Iterator[None]:
    """`Namespace.entered` for one of another process: ``/proc/PID/ns/net``. Raises `OSError` or `LabError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _entered(fd):
            yield
    finally:
        os.close(fd)


def process_ids() -> list[int]:
    """All processes of this machine that can be seen."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def processes_in(namespaces: Iterable[Namespace]) -> list[int]:
    """The processes inside any of them, also those that were not started from here."""
    inodes = {namespace.inode for namespace in namespaces}
    return [pid for pid in process_ids() if inode_of(pid) in inodes]


def inode_of(pid: int) -> int | None:
    """Of the network namespace that a process is in; None if it has ended, or is about to."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def kill_inside(is_inside: Callable[[int], bool], seconds: float, between: Callable[[], object] = bool) -> None:
    """Kill all processes that are inside, also those that start meanwhile, until there are none or time is over.

    ``between``: called after each round.
    """
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in process_ids() if is_inside(pid)]) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                try:
                    if is_inside(pid):  # still the same one
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    os.close(process)
        between()
        time.sleep(0.002)


@contextmanager
def _entered(fd: int) -> Iterator[None]:
    outside = os.open(_THREAD_NAMESPACE, os.O_RDONLY)
    try:
        _check(_libc().setns(fd, _CLONE_NEWNET), "enter a network namespace")
        try:
            yield
        finally:
            _check(_libc().setns(outside, _CLONE_NEWNET), "leave a network namespace")
    finally:
        os.close(outside)


def _create(ipv6: bool) -> int:
    """A thread steps into a new namespace, opens it, and ends: no other thread ever leaves its own."""
    if sys.platform != "linux":
        raise LabError("the lab needs Linux: its hosts are network namespaces")
    made: list[int] = []
    failed: list[OSError] = []

    def step_out() -> None:
        try:
            if _libc().unshare(_CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            _settle(ipv6)
            made.append(os.open(_THREAD_NAMESPACE, os.O_RDONLY))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=step_out, name="lab namespace")
    thread.start()
    thread.join()
    if failed:
        raise LabError(
            f"cannot make a network namespace ({failed[0].strerror}); the lab needs root: use sudo, or "
            "`unshare --user --map-root-user --net --mount` where the system allows that"
        ) from failed[0]
    return made[0]


def _settle(ipv6: bool) -> None:
    """Settings that a new namespace copies from the machine, which may be a router."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    settings = Path("/proc/sys/net/ipv6/conf")
    if settings.exists():
        for scope in ("all", "default"):
            (settings / scope / "disable_ipv6").write_text("0" if ipv6 else "1")
            # No other host can have the address: it may be used at once.
            (settings / scope / "accept_dad").write_text("0")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, doing: str) -> None:
    if result != 0:
        raise LabError(f"cannot {doing}: {os.strerror(ctypes.get_errno())}")
