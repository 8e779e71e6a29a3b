"""The status of a lab of emulated hosts."""

from __future__ import annotations

import msgspec

from ferrule.hardware import Shaping
from ferrule.lab.daemon.registry import HostState


class HostStatus(HostState, frozen=True, kw_only=True):
    """``memory`` in bytes, ``memory_bandwidth`` in bytes/s, ``flops`` in 1/s by data type: of the machine's profile.
    ``addresses``: by interface; ``processes``: how many run in it."""

    machine: str
    title: str
    memory: float
    memory_bandwidth: float
    flops: dict[str, float]
    addresses: dict[str, str]
    processes: int


class EndStatus(msgspec.Struct, frozen=True):
    """One host's end. ``text``: what its ``shaping`` is; ``counters``: of the frames that it sent."""

    state: str
    address: str
    shaping: Shaping
    text: str
    counters: dict[str, float]


class CableStatus(msgspec.Struct, frozen=True):
    """``kind``: of its profile; ``faults``: in words; ``ends``: by host."""

    name: str
    kind: str
    hosts: tuple[str, ...]
    mtu: int
    faults: tuple[str, ...]
    ends: dict[str, EndStatus]


class LabStatus(msgspec.Struct, frozen=True):
    """``since``: seconds since 1970."""

    name: str
    profile: str
    title: str
    pid: int
    user: str
    since: float
    boot: str
    hosts: tuple[HostStatus, ...]
    cables: tuple[CableStatus, ...]
