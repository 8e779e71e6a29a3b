"""A disk that the kernel lets some processes read slowly: control groups of version 1 or 2, as root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
NAME = "ferrule-slow-disk-"


def obstacle() -> str | None:
    """Why there can be none."""
    if not (GROUPS / "blkio").is_dir() and "io" not in _controllers():
        return "no control groups for disks"
    return None if os.geteuid() == 0 else "not root"


@contextmanager
def slow_disk(folder: Path, rate: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that lets a process, and those that it starts from then on, read the disk of ``folder`` at so
    many bytes per second, all together. What is in the page cache is no reading."""
    old = GROUPS / "blkio"
    top = old if old.is_dir() else GROUPS
    for left in top.glob(f"{NAME}*"):
        with suppress(OSError):  # of a run that is not over
            left.rmdir()
    if top != old:
        (top / "cgroup.subtree_control").write_text("+io")
    group = top / f"{NAME}{os.getpid()}"
    group.mkdir()
    try:
        if top == old:
            (group / "blkio.throttle.read_bps_device").write_text(f"{_disk(folder)} {rate}")
        else:
            (group / "io.max").write_text(f"{_disk(folder)} rbps={rate}")
        yield lambda pid: _enter(group, pid)
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                _enter(top, int(pid))
        group.rmdir()


def forget(folder: Path) -> None:
    """Have nothing of the files in ``folder`` in the page cache, as where weights take all memory."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())  # what is not written yet would stay
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _controllers() -> list[str]:
    try:
        return (GROUPS / "cgroup.controllers").read_text().split()
    except OSError:
        return []


def _enter(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def _disk(folder: Path) -> str:
    """The numbers of the whole disk of which ``folder`` is on a part."""
    device = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = block.parent if (block / "partition").exists() else block
    return (whole / "dev").read_text().strip()
