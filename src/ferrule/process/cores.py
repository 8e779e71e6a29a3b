"""Cores for threads that compute and hardly ever sleep: each such process runs on cores that no other one has.

Where two of them meet on one core, both are late at every collective, and with them all other ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ferrule.files import hold, locked, runtime_directory

_CPUS = Path("/sys/devices/system/cpu")
_TURN_SECONDS = 5.0
_held: list[int] = []


def pin_to_free_cores(count: int) -> tuple[int, ...]:
    """Tie the calling thread, and those that it will start, to ``count`` cores that no other process of this user has
    by this function; they are this process's until it ends. Returns them: none where fewer are free, or where this
    system does not let threads be tied."""
    if not hasattr(os, "sched_setaffinity"):
        return ()
    try:
        claimed = claim(in_order(os.sched_getaffinity(0)), count, runtime_directory("cores"))
    except OSError:  # no such directory: it goes without
        return ()
    if claimed:
        os.sched_setaffinity(0, claimed)
    return claimed


def claim(cores: Iterable[int], count: int, directory: Path) -> tuple[int, ...]:
    """The first ``count`` of ``cores`` that no process has claimed in ``directory``; none where these are fewer.
    Raises `OSError`."""
    locks: list[int] = []
    claimed: list[int] = []
    with suppress(TimeoutError), locked(directory / "turn", _TURN_SECONDS):  # so that no two get a half each
        for core in cores:
            if len(claimed) == count:
                break
            lock = hold(directory / str(core), 0)
            if lock is not None:
                locks.append(lock)
                claimed.append(core)
        if len(claimed) == count:
            _held.extend(locks)
            return tuple(claimed)
        for lock in locks:
            os.close(lock)
    return ()


def in_order(cores: Iterable[int], cpus: Path = _CPUS) -> list[int]:
    """The fastest first, those that share a core with an earlier one last; otherwise by socket and number. ``cpus``:
    what Linux says of them."""
    seen: set[tuple[int, int]] = set()
    keys = []
    for core in sorted(cores):
        place = (_number(cpus, core, "topology/physical_package_id", 0), _number(cpus, core, "topology/core_id", core))
        keys.append((place in seen, -_number(cpus, core, "cpu_capacity", 0), place[0], core))
        seen.add(place)
    return [key[-1] for key in sorted(keys)]


def _number(cpus: Path, core: int, name: str, otherwise: int) -> int:
    try:
        return int((cpus / f"cpu{core}" / name).read_text())
    except (OSError, ValueError):
        return otherwise
