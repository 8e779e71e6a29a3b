"""The requests to the process that emulates USB4 controllers, and its answers."""

from __future__ import annotations

import msgspec

from ferrule.files import FileRecord
from ferrule.lab.daemon.messages import Down, Name, Request
from ferrule.lab.usb4.profile import FaultKind, Plan


class Order(FileRecord, frozen=True, tag="usb4-order"):
    """Start order of the emulating process: the arguments of `Usb4Lab`. ``trace``: a path, or empty."""

    plan: Plan
    trace: str
    training: float


class Plug(Request, frozen=True):
    cable: Name
    on: bool


class SetFault(Request, frozen=True, tag="fault"):
    """A fault of the same kind and sender is replaced."""

    cable: Name
    kind: FaultKind
    chance: float
    sender: Name | None


class Heal(Request, frozen=True):
    cable: Name


class Reshape(Request, frozen=True):
    """``rate`` in bits per second; None: no limit."""

    cable: Name
    rate: float | None
    delay_us: float


class GetState(Request, frozen=True, tag="state"):
    pass


class GetCounters(Request, frozen=True, tag="counters"):
    pass


Usb4Request = Plug | SetFault | Heal | Reshape | GetState | GetCounters | Down


class ControllerState(msgspec.Struct, frozen=True):
    """``connected``: a guest has it; ``enabled``: its driver runs."""

    connected: bool
    enabled: bool


class CableState(msgspec.Struct, frozen=True):
    """``link``: down, training or up; ``gbps``: of each lane; ``lanes``: 0 while the link is not up."""

    link: str
    plugged: bool
    gbps: int
    lanes: int
    faults: tuple[str, ...]


class Usb4State(msgspec.Struct, frozen=True):
    """``hosts``: of each its controllers; ``cables``: by name."""

    hosts: dict[str, list[ControllerState]]
    cables: dict[str, CableState]


class Usb4Counters(msgspec.Struct, frozen=True):
    """Frames, bytes and what became of them: of each host's controllers, and of each cable by sender. ``untraced``:
    packets for which the trace had no room."""

    hosts: dict[str, list[dict[str, int]]]
    cables: dict[str, dict[str, dict[str, int]]]
    untraced: int
