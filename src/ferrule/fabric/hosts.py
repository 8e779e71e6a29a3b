"""What a rank tells the others about its host, and what follows from that."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class RankHost:
    """Where a rank runs.

    ``host``: a name for people. ``memory_id``: equal for ranks that should be able to share memory: same boot of
    the same kernel, same /dev/shm (two containers have two), same user; a probe must still prove it. ``cpus``: the
    CPUs it may run on. ``address`` and ``port``: where it listens for other ranks.
    """

    host: str
    memory_id: str
    pid: int
    cpus: tuple[int, ...]
    transport: str
    address: str = ""
    port: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "cpus": tuple(fields["cpus"])})


def this_host(transport: str, address: str = "", port: int = 0) -> RankHost:
    if hasattr(os, "sched_getaffinity"):
        cpus = tuple(sorted(os.sched_getaffinity(0)))
    else:
        cpus = tuple(range(os.cpu_count() or 1))
    return RankHost(socket.gethostname(), _memory_id(), os.getpid(), cpus, transport, address, port)


def oversubscribed(cpu_sets: Sequence[Sequence[int]]) -> bool:
    """Whether ranks of one host with these CPU sets cannot all run at the same moment.

    Looks at every rank's own set and at the union, not at all unions: enough for pinned and unpinned ranks.
    """
    sets = [frozenset(cpus) for cpus in cpu_sets]
    for candidate in {*sets, frozenset().union(*sets)}:
        if sum(1 for cpus in sets if cpus <= candidate) > len(candidate):
            return True
    return False


@cache
def _memory_id() -> str:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    if boot_id.exists():
        shm = Path("/dev/shm")
        device = shm.stat().st_dev if shm.exists() else 0
        return f"{boot_id.read_text().strip()}/{device}/{os.geteuid()}"
    # macOS
    command = ["sysctl", "-n", "kern.bootsessionuuid"]
    session = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()
    return f"{session or socket.gethostname()}/{os.geteuid()}"
