"""Host description that a rank sends to the others, and conclusions from it."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.config import host_id
from ferrule.fabric.join.addresses import Interface
from ferrule.process import boot_id


@dataclass(frozen=True)
class RankHost:
    """Host of a rank.

    ``host``: a name for people. ``memory_id``: equal for ranks that should be able to share memory: same boot of
    the same kernel, same process namespace (two containers have two), same user; a probe must still prove it.
    ``cpus``: the CPUs it may run on, those of ``kernel``: containers and emulated hosts of one machine share them.
    ``address`` and ``port``: where it was met, and listens for other ranks;
    ``interfaces``: where it does so too, empty on a host of its own. ``sockets``: how many rails per interface it is
    to have; 0: as many as measure faster.
    ``algorithm``: what FERRULE_ALGORITHM says there. ``identity``: tells the host and its kernel from
    others, also after a restart; empty where nothing does.
    """

    host: str
    memory_id: str
    pid: int
    cpus: tuple[int, ...]
    transport: str
    address: str = ""
    port: int = 0
    interfaces: tuple[Interface, ...] = ()
    sockets: int = 0
    algorithm: str = "auto"
    identity: str = ""
    kernel: str = ""


def this_host(transport: str) -> RankHost:
    """This process's host; where it listens is not known here."""
    if hasattr(os, "sched_getaffinity"):
        cpus = tuple(sorted(os.sched_getaffinity(0)))
    else:
        cpus = tuple(range(os.cpu_count() or 1))
    own = host_id(os.environ)
    # An emulated host shares this machine's memory but must not show it.
    memory_id = f"{own}/{_memory_id()}" if own else _memory_id()
    name = own or socket.gethostname()
    return RankHost(name, memory_id, os.getpid(), cpus, transport, identity=_identity(own), kernel=boot_id())


def oversubscribed(cpu_sets: Sequence[Sequence[int]]) -> bool:
    """Whether ranks of one host with these CPU sets cannot all run at the same moment.

    Looks at every rank's own set and at the union, not at all unions: enough for pinned and unpinned ranks.
    """
    sets = [frozenset(cpus) for cpus in cpu_sets]
    for candidate in {*sets, frozenset().union(*sets)}:
        if sum(1 for cpus in sets if cpus <= candidate) > len(candidate):
            return True
    return False


def _identity(own: str) -> str:
    machine_id = Path("/etc/machine-id")
    try:
        text = machine_id.read_text().strip()
    except OSError:
        return ""
    # As its manual asks for, the machine's id itself is not shown.
    digest = hashlib.sha256(f"ferrule {text} {own}".encode()).hexdigest()[:16]
    return f"{digest} {os.uname().release}" if text else ""


def _memory_id() -> str:
    processes = Path("/proc/self/ns/pid")
    namespace = f"{processes.stat().st_ino}/" if processes.exists() else ""
    return f"{boot_id()}/{namespace}{os.geteuid()}"
