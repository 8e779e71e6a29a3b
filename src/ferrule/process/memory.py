"""Memory that a process holds, and that its machine or its control group (container, service) has and has left."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import psutil

from ferrule.files import read_number
from ferrule.process.control_groups import ROOT, groups_of

_STATUS = Path("/proc/self/status")
_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""A group's limit and use, by version."""
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
    for version, group in groups_of("memory", root):
        limit_file, used_file = _FILES[version]
        limit, used = read_number(group / limit_file), read_number(group / used_file)
        if limit is not None and used is not None and limit < _UNLIMITED:
            yield limit, max(0, used - _page_cache(group / "memory.stat"))


def _page_cache(stat: Path) -> int:
    """Page cache that the group's use counts, and the kernel gives back when it is asked for."""
    try:
        words = dict(line.split() for line in stat.read_text().splitlines())
        return int(words.get("total_inactive_file", words.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
