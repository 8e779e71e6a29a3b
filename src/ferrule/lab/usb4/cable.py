"""A cable: the state of its link, its width and its faults. Pure: time and routers come from the caller."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ferrule.lab.usb4 import router as states
from ferrule.lab.usb4.profile import Fault, FaultKind, Usb4Cable
from ferrule.lab.usb4.router import Router


class Link(StrEnum):
    DOWN = "down"
    TRAINING = "training"
    UP = "up"


@dataclass(frozen=True)
class Shape:
    """The shaping of one direction; see `ferrule._emulation.Usb4Engine.shape`."""

    rate: float
    delay: float
    drop: float
    corrupt: float
    duplicate: float
    reorder: float
    mute: bool


@dataclass
class Cable:
    """``number``: in the lab; ``ends``: number of the controller and of its port, as the spec's ``a`` and ``b``."""

    number: int
    spec: Usb4Cable
    ends: tuple[tuple[int, int], tuple[int, int]]
    plugged: bool = True
    link: Link = Link.DOWN
    up_at: float = 0.0
    bonded: bool = False
    faults: list[Fault] = field(default_factory=list)

    def has(self, kind: FaultKind) -> bool:
        return any(fault.kind == kind for fault in self.faults)

    @property
    def two_lanes(self) -> bool:
        return self.spec.lanes == 2 and not self.has(FaultKind.HALF_LANE)

    @property
    def width(self) -> int:
        return 2 if self.bonded else 1

    def update(self, now: float, can: bool, training: float) -> bool:
        """``can``: both ends have power, and neither holds its port in reset. Whether the link came up or went down."""
        was = self.link
        if not (can and self.plugged):
            self.link = Link.DOWN
        elif self.link == Link.DOWN:
            self.link, self.up_at = Link.TRAINING, now + training
        elif self.link == Link.TRAINING and now >= self.up_at:
            self.link = Link.UP
        if self.link != Link.UP:
            self.bonded = False
        return (was == Link.UP) != (self.link == Link.UP)

    def retrain(self) -> None:
        """The link is lost, and `update` brings it up again."""
        self.link, self.bonded = Link.DOWN, False

    def show(self, routers: tuple[Router, Router]) -> None:
        """Set the registers of both routers."""
        pairs = [(router, port) for router, (_, port) in zip(routers, self.ends, strict=True)]
        state = {Link.DOWN: states.UNPLUGGED, Link.TRAINING: states.TRAINING, Link.UP: states.UP}[self.link]
        both = self.two_lanes
        if self.link == Link.UP:
            both = both and not any(router.lane_disabled(port) for router, port in pairs)
            begun = self.bonded or any(router.starts_bonding(port) for router, port in pairs)
            self.bonded = both and begun and all(router.wants_bonding(port) for router, port in pairs)
        for router, port in pairs:
            second = states.DISABLED if router.lane_disabled(port) else state if both else states.UNPLUGGED
            router.set_link(port, state, second, gbps=self.spec.gbps, width=self.width)

    def shape(self, end: int) -> Shape:
        """Of what the host at this end sends."""
        sender = self.spec.hosts[end]
        chances = dict.fromkeys(FaultKind, 0.0)
        for fault in self.faults:
            if fault.sender in (None, sender):
                chances[fault.kind] = max(chances[fault.kind], fault.chance)
        return Shape(
            rate=self.spec.rate or 0.0,
            delay=self.spec.delay_us / 1e6,
            drop=chances[FaultKind.DROP],
            corrupt=chances[FaultKind.CORRUPT],
            duplicate=chances[FaultKind.DUPLICATE],
            reorder=chances[FaultKind.REORDER],
            mute=chances[FaultKind.ONE_WAY] > 0,
        )

    def chance_of(self, kind: FaultKind, end: int) -> float:
        """The chance of a fault of the controller at this end."""
        sender = self.spec.hosts[end]
        return max(
            (fault.chance for fault in self.faults if fault.kind == kind and fault.sender in (None, sender)),
            default=0.0,
        )
