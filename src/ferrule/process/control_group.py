"""A control group of our own, in which the kernel holds processes to so much memory, time or reading. Linux, as root.

As a program it is the group's guardian: it waits until the maker of the group has ended, however that was, ends what is
left in there, and removes it.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ferrule.errors import ConfigError
from ferrule.files import read_number
from ferrule.process.control_groups import ROOT, groups_of

_NAME = "ferrule-group-"
_REMOVE_SECONDS = 10.0
_STEP = 0.02
_PERIOD_US = 5000
"""Of processor time: shorter than a token of any model takes, so that quotas slow a process down more than they stop
it."""
_LEAST_QUOTA_US = 1000
"""The kernel takes no shorter one."""
_NEW_NAMES = {"blkio": "io"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Limit:
    """What the kernel holds a group to. ``controller``: that counts it, as version 1 calls it. ``old`` and ``new``:
    what is written to which file of a group of version 1 or 2; ``optional``: files that not every kernel has.
    ``instead``: options of `systemd-run` that do the same."""

    controller: str
    old: Mapping[str, str]
    new: Mapping[str, str]
    instead: str
    optional: Collection[str] = ()


def memory_limit(size: int) -> Limit:
    """So many bytes for all its processes together, page cache included; there is no swap beyond them."""
    swap = "memory.memsw.limit_in_bytes"
    return Limit(
        "memory",
        {"memory.limit_in_bytes": str(size), swap: str(size)},
        {"memory.max": str(size), "memory.swap.max": "0"},
        "-p MemoryMax=SIZE -p MemorySwapMax=0",
        {swap, "memory.swap.max"},
    )


def processor_limit(cores: float) -> Limit:
    """So many cores' worth of time. What its processes leave of one period, while they wait for others, they may use in
    the next one, where the kernel can do that (Linux 5.14): as on a slow machine, which computes when there is
    something to do. Raises `ConfigError`."""
    if not cores > 0:
        raise ConfigError(f"a control group needs more than 0 cores, not {cores:g}")
    period = max(_PERIOD_US, round(_LEAST_QUOTA_US / cores))
    quota = str(round(period * cores))
    return Limit(
        "cpu",
        {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": quota, "cpu.cfs_burst_us": quota},
        {"cpu.max": f"{quota} {period}", "cpu.max.burst": quota},
        "-p CPUQuota=PERCENT",
        {"cpu.cfs_burst_us", "cpu.max.burst"},
    )


def reading_limit(folder: Path, rate: int) -> Limit:
    """So many bytes per second from the disk of ``folder``. What is in the page cache is no reading."""
    disk = _disk(folder)
    return Limit(
        "blkio",
        {"blkio.throttle.read_bps_device": f"{disk} {rate}"},
        {"io.max": f"{disk} rbps={rate}"},
        "-p 'IOReadBandwidthMax=PATH RATE'",
    )


class ControlGroup:
    """As a context it is there, and then gone with all that runs in it. Raises `ConfigError` where there can be none.
    ``root``: where /proc and /sys are."""

    def __init__(self, limit: Limit, root: Path = ROOT) -> None:
        self.limit = limit
        self._own, self._old = _own_group(limit, root)
        parent = self._own if self._old else root / "sys/fs/cgroup"
        self.path = parent / f"{_NAME}{os.getpid()}-{next(_numbers)}"
        self._guardian: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make(self) -> None:
        """Raises `ConfigError`."""
        _sweep(self.path.parent)
        command = [sys.executable, "-m", __spec__.name, str(self.path)]
        self._guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        try:
            if not self._old:
                self._enable()
            self.path.mkdir(exist_ok=True)
            for file, text in (self.limit.old if self._old else self.limit.new).items():
                if file not in self.limit.optional or (self.path / file).exists():
                    (self.path / file).write_text(text)
        except OSError as error:
            self.close()
            raise _refusal(self.limit, error) from None

    def enter(self, pid: int) -> None:
        """That process, and what it starts from then on."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def leave(self, pid: int) -> None:
        """That process, for the group of this one."""
        (self._own / "cgroup.procs").write_text(str(pid))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Processes that this one starts meanwhile are in the group, and stay there; it itself is only meanwhile."""
        self.enter(os.getpid())
        try:
            yield
        finally:
            self.leave(os.getpid())

    @property
    def peak(self) -> int:
        """Bytes that it had at once, at most, where memory is limited; 0 where the kernel does not say."""
        return read_number(self.path / ("memory.max_usage_in_bytes" if self._old else "memory.peak")) or 0

    def close(self) -> None:
        """End what is in it, and remove it. Safe to call twice."""
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()
            self._guardian.wait(2 * _REMOVE_SECONDS)

    def _enable(self) -> None:
        """Have the groups beside it counted, too: version 2 counts only where it is told to."""
        name = _NEW_NAMES.get(self.limit.controller, self.limit.controller)
        enabled = self.path.parent / "cgroup.subtree_control"
        if name not in enabled.read_text().split():
            enabled.write_text(f"+{name}")


def _own_group(limit: Limit, root: Path) -> tuple[Path, bool]:
    """The group of this process, and whether it is of version 1."""
    for version, group in groups_of(limit.controller, root):
        if group.is_dir():  # a container may see its own as the top
            return group, version == 1
    raise _refusal(limit, "this process is in none that counts it")


def _sweep(parent: Path) -> None:
    """Remove groups of processes that have ended together with their guardians."""
    for left in parent.glob(f"{_NAME}*"):
        number = left.name.removeprefix(_NAME).partition("-")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            with suppress(OSError):
                left.rmdir()


def _refusal(limit: Limit, reason: OSError | str) -> ConfigError:
    return ConfigError(
        f"there can be no control group for {limit.controller} here ({reason}): it needs Linux, root, and a container "
        f"that may make groups; `systemd-run --scope {limit.instead} COMMAND` makes one where systemd runs"
    )


def _disk(folder: Path) -> str:
    """The numbers of the whole disk of which ``folder`` is on a part."""
    device = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = block.parent if (block / "partition").exists() else block
    return (whole / "dev").read_text().strip()


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
