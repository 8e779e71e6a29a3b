"""Hosts and cables of a lab of emulated USB4 controllers, and their faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ferrule.errors import ConfigError

CONTROL, ORDER, LOG = "control", "lab.json", "server.log"
"""Files in a lab's directory: the emulating process's own socket, what it was started with, and its errors."""

MOST_HOSTS, MOST_CONTROLLERS, MOST_PORTS = 4, 2, 4
_MOST_HOPS_MASKED = 32  # 64 bits of a mask, then the register that clears them; drivers of Intel's do not use that
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_VENDORS = {"intel": (0x8086, 0x7777), "amd": (0x1022, 0x158D)}


@dataclass(frozen=True)
class Usb4Host:
    """A machine with USB4 controllers.

    ``hops``: rings of each controller in each direction, one of them for control packets (Strix Halo has 3).
    Others than Intel's have at most 32.
    ``ports``: cables that each controller has room for. ``vendor``: whose controller it looks like, ``intel`` or
    ``amd``; the driver clears interrupts of the two in different ways, and Intel's costs a guest less.
    """

    name: str
    controllers: int = 1
    hops: int = 12
    ports: int = 2
    vendor: str = "intel"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} cannot name a host; use up to 40 letters, digits, dots, dashes")
        for what, value, least, most in (
            ("controllers", self.controllers, 1, MOST_CONTROLLERS),
            ("hops", self.hops, 2, 64),
            ("ports", self.ports, 1, MOST_PORTS),
        ):
            if not least <= value <= most:
                raise ConfigError(f"host {self.name}: {what} must be {least} to {most}, not {value}")
        if self.vendor not in _VENDORS:
            raise ConfigError(f"host {self.name}: the vendor {self.vendor!r} is none of {', '.join(_VENDORS)}")
        if self.vendor != "intel" and self.hops > _MOST_HOPS_MASKED:
            most = _MOST_HOPS_MASKED
            raise ConfigError(f"host {self.name}: {self.vendor} has at most {most} hops, not {self.hops}")

    @property
    def ids(self) -> tuple[int, int]:
        """PCI vendor and device."""
        return _VENDORS[self.vendor]


@dataclass(frozen=True)
class Usb4Cable:
    """A cable between two ports: ``(host, port)``, ports counted through all controllers of the host.

    ``gbps``: of each lane, 10 or 20, and ``lanes``: 1 or 2, as sysfs reports them. ``rate``: bits per second that pass
    in each direction; None: as fast as this machine copies. ``delay_us``: of each direction.
    """

    name: str
    a: tuple[str, int]
    b: tuple[str, int]
    gbps: int = 20
    lanes: int = 2
    rate: float | None = None
    delay_us: float = 0.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} cannot name a cable; use up to 40 letters, digits, dots, dashes")
        if self.gbps not in (10, 20) or self.lanes not in (1, 2):
            raise ConfigError(f"{self.name}: a lane has 10 or 20 Gb/s, and a cable 1 or 2 of them")
        if (self.rate is not None and not self.rate > 0) or not 0 <= self.delay_us <= 1e6:
            raise ConfigError(f"{self.name}: the rate must be above 0, and the delay between 0 and a second")

    @property
    def hosts(self) -> tuple[str, str]:
        return self.a[0], self.b[0]


def socket_name(host: str, number: int) -> str:
    """Of a controller's socket, in the lab's directory."""
    return f"{host}-{number}.sock"


class FaultKind(StrEnum):
    CORRUPT = "corrupt"
    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    ONE_WAY = "one-way"
    HALF_LANE = "half-lane"
    STALL_TX = "stall-tx"
    STALL_RX = "stall-rx"
    LOSE_INTERRUPTS = "lose-interrupts"


FAULTS = {
    FaultKind.CORRUPT: "a wrong bit in this part of the frames; the receiver's controller says: CRC error",
    FaultKind.DROP: "this part of the frames is lost",
    FaultKind.DUPLICATE: "this part of the frames comes twice",
    FaultKind.REORDER: "this part of the frames comes behind the next one",
    FaultKind.ONE_WAY: "nothing arrives from one host, which still hears the other",
    FaultKind.HALF_LANE: "the link goes down and comes up again with one lane",
    FaultKind.STALL_TX: "the host's controller does not look at its Tx rings (but for control packets)",
    FaultKind.STALL_RX: "the host's controller puts nothing into its Rx rings (but for control packets)",
    FaultKind.LOSE_INTERRUPTS: "this part of the interrupts of the host's controller is not raised",
}
_CHANCES = {FaultKind.CORRUPT, FaultKind.DROP, FaultKind.DUPLICATE, FaultKind.REORDER, FaultKind.LOSE_INTERRUPTS}
_NEEDS_SENDER = {FaultKind.ONE_WAY}


@dataclass(frozen=True)
class Fault:
    """A fault of a cable, or of the controllers at its ends.

    ``chance``: from 0 to 1, of each frame or interrupt. ``sender``: only what this host sends, or only its controller;
    None: both.
    """

    kind: FaultKind
    chance: float = 1.0
    sender: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.chance <= 1:
            raise ConfigError(f"the chance of {self.kind} must be above 0 and at most 1, not {self.chance:g}")
        if self.chance != 1 and self.kind not in _CHANCES:
            raise ConfigError(f"{self.kind} happens or not; it has no chance")
        if self.sender is None and self.kind in _NEEDS_SENDER:
            raise ConfigError(f"{self.kind} needs the host from which nothing arrives")


def parse_fault(text: str, sender: str | None = None) -> Fault:
    """``drop=1%``, ``corrupt=0.001``, ``half-lane``. Raises `ConfigError`."""
    kind, equals, value = text.partition("=")
    if kind not in {each.value for each in FaultKind}:
        raise ConfigError(f"there is no fault {kind!r}; there are {', '.join(FAULTS)}")
    try:
        chance = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1) if equals else 1.0
    except ValueError:
        raise ConfigError(f"{value!r} is no chance; use, for example, {kind}=1% or {kind}=0.01") from None
    return Fault(FaultKind(kind), chance, sender)


@dataclass(frozen=True)
class Plan:
    """Hosts and cables that fit together, and how they are numbered."""

    hosts: tuple[Usb4Host, ...]
    cables: tuple[Usb4Cable, ...] = field(default=())

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MOST_HOSTS:
            raise ConfigError(f"a USB4 lab has 1 to {MOST_HOSTS} hosts, not {len(self.hosts)}")
        _different([host.name for host in self.hosts], "hosts")
        _different([cable.name for cable in self.cables], "cables")
        ends = [end for cable in self.cables for end in (cable.a, cable.b)]
        for name, port in ends:
            host = self.host(name)
            if not 0 <= port < host.controllers * host.ports:
                raise ConfigError(f"host {name} has ports 0 to {host.controllers * host.ports - 1}, and no {port}")
        _different([f"{name} port {port}" for name, port in ends], "cables at")
        for cable in self.cables:
            if cable.a[0] == cable.b[0]:
                raise ConfigError(f"{cable.name} joins {cable.a[0]} to itself")

    def cable(self, name: str) -> Usb4Cable:
        """Raises `ConfigError` for a name that no cable has."""
        for cable in self.cables:
            if cable.name == name:
                return cable
        known = ", ".join(each.name for each in self.cables) or "none"
        raise ConfigError(f"the lab has no cable {name!r}, only {known}")

    def host(self, name: str) -> Usb4Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise ConfigError(f"the lab has no host {name!r}, only {', '.join(host.name for host in self.hosts)}")

    def controllers(self) -> list[tuple[Usb4Host, int]]:
        """All controllers, in the order in which they are numbered: host, and which of its own."""
        return [(host, number) for host in self.hosts for number in range(host.controllers)]

    def place(self, end: tuple[str, int]) -> tuple[int, int]:
        """Number of the controller, and which of its ports, of a cable's end."""
        host = self.host(end[0])
        number, port = divmod(end[1], host.ports)
        return self.controllers().index((host, number)), port


def _different(names: Sequence[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two {what} {name}" if what.endswith(" at") else f"two {what} are called {name}")
