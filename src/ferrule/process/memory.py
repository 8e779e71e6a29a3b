"""Memory that a process holds, and that its machine or its control group (container, service) has and has left."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import psutil

from ferrule.files import read_number

ROOT = Path("/")
_STATUS = Path("/proc/self/status")
_UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number near 2**63 where there is no limit."""


def private_bytes() -> int:
    """Anonymous memory of this process. Pages of mapped files (the checkpoint's, libraries') are the kernel's to
    take back and do not count. Where /proc is not there (macOS), the unique set size."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_full_info().uss)


def trim() -> None:
    """Have the C library give freed memory back to the system, which it may keep for as long as something behind it is
    in use. Only GNU's can; elsewhere this does nothing."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


def memory_free(root: Path = ROOT) -> tuple[int, int]:
    """Bytes that programs can still have without paging, and all there are: of the machine, or of the control group
    (container, service) with the least left. ``root``: where /proc and /sys are."""
    machine = psutil.virtual_memory()
    free, total = int(machine.available), int(machine.total)
    for limit, used in _group_limits(root):
        free, total = min(free, max(0, limit - used)), min(total, limit)
    return free, total


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that this process is in, from its own up to the whole."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    groups = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top, limit_file, used_file = groups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit_file, used_file = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        for group in _up(top, path):
            limit, used = read_number(group / limit_file), read_number(group / used_file)
            if limit is not None and used is not None and limit < _UNLIMITED:
                yield limit, max(0, used - _page_cache(group / "memory.stat"))


def _up(top: Path, path: str) -> Iterator[Path]:
    group = top / path.strip("/")
    # Within a container the path may be the host's, and only the top is there.
    while group != top:
        yield group
        group = group.parent
    yield top


def _page_cache(stat: Path) -> int:
    """Page cache that the group's use counts, and the kernel gives back when it is asked for."""
    try:
        words = dict(line.split() for line in stat.read_text().splitlines())
        return int(words.get("total_inactive_file", words.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
