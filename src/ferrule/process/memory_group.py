"""A control group in which the kernel holds processes to so much memory, page cache included. Linux, as root.

As a program it is the group's guardian: it waits until the maker of the group has ended, however that was, ends what is
left in there, and removes it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ferrule.errors import ConfigError
from ferrule.files import read_number
from ferrule.process.control_groups import ROOT, groups_of

_NAME = "ferrule-memory-"
_REMOVE_SECONDS = 10.0
_STEP = 0.02


class MemoryGroup:
    """``limit``: bytes, for all its processes together; there is no swap beyond them. As a context it is there,
    and then gone with all that runs in it. Raises `ConfigError` where there can be none."""

    def __init__(self, limit: int, root: Path = ROOT) -> None:
        self.limit = limit
        self._own, self._old = _own_group(root)
        self._path = (self._own if self._old else root / "sys/fs/cgroup") / f"{_NAME}{os.getpid()}"
        self._guardian: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        _sweep(self._path.parent)
        command = [sys.executable, "-m", __spec__.name, str(self._path)]
        self._guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        try:
            self._path.mkdir(exist_ok=True)
            if self._old:
                (self._path / "memory.limit_in_bytes").write_text(str(self.limit))
                swap, most = "memory.memsw.limit_in_bytes", self.limit
            else:
                (self._path / "memory.max").write_text(str(self.limit))
                swap, most = "memory.swap.max", 0
            if (self._path / swap).exists():  # the kernel counts swap
                (self._path / swap).write_text(str(most))
        except OSError as error:
            self._close()
            raise _refusal(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Processes that this one starts meanwhile are in the group, and stay there; it itself is only meanwhile."""
        (self._path / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._own / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak(self) -> int:
        """Bytes that it had at once, at most; 0 where the kernel does not say."""
        return read_number(self._path / ("memory.max_usage_in_bytes" if self._old else "memory.peak")) or 0

    def _close(self) -> None:
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()
            self._guardian.wait(2 * _REMOVE_SECONDS)


def _own_group(root: Path) -> tuple[Path, bool]:
    """The group of this process, and whether it is of version 1."""
    for version, group in groups_of("memory", root):
        if group.is_dir():  # a container may see its own as the top
            return group, version == 1
    raise _refusal("this process is in none that counts it")


def _sweep(parent: Path) -> None:
    """Remove groups of processes that have ended together with their guardians."""
    for left in parent.glob(f"{_NAME}*"):
        number = left.name.removeprefix(_NAME)
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            with suppress(OSError):
                left.rmdir()


def _refusal(reason: OSError | str) -> ConfigError:
    return ConfigError(
        f"there can be no control group for memory here ({reason}): it needs Linux, root, and a container that may "
        "make groups; `systemd-run --scope -p MemoryMax=SIZE -p MemorySwapMax=0 COMMAND` makes one where systemd runs"
    )


def guard(path: Path, seconds: float = _REMOVE_SECONDS) -> None:
    """End what is in the group, and remove it, within about so many seconds."""
    deadline = time.monotonic() + seconds
    while path.is_dir() and time.monotonic() < deadline:
        for pid in (path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):  # until the last one is gone
            path.rmdir()
        time.sleep(_STEP)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    guard(Path(sys.argv[1]))
