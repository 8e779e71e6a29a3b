"""Network interfaces, their addresses and routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NetKind = Literal["thunderbolt", "ethernet", "infiniband", "wifi", "bridge", "bond", "virtual", "loopback"]


@dataclass(frozen=True, slots=True)
class NetAddress:
    """An IP address with the length of its subnet's prefix. ``scope``: ``global``, ``link`` or ``host``."""

    address: str
    prefix: int
    scope: str | None = None

    @property
    def version(self) -> Literal[4, 6]:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True, slots=True)
class NetCounters:
    """Since the interface came into being."""

    rx_bytes: int | None = None
    tx_bytes: int | None = None
    rx_packets: int | None = None
    tx_packets: int | None = None
    rx_errors: int | None = None
    tx_errors: int | None = None
    rx_dropped: int | None = None
    tx_dropped: int | None = None
    rx_crc_errors: int | None = None
    rx_missed_errors: int | None = None
    tx_carrier_errors: int | None = None
    collisions: int | None = None
    carrier_changes: int | None = None


@dataclass(frozen=True, slots=True)
class FlowControl:
    """Whether senders are paused before packets are lost. None: the driver, or a missing program, does not tell.

    ``receives``: pause frames are obeyed; ``sends``: they are sent. ``priorities``: for which PFC is on.
    """

    receives: bool | None = None
    sends: bool | None = None
    priorities: tuple[int, ...] | None = None

    @property
    def lossless(self) -> bool | None:
        """Whether this end pauses and is paused; None if neither was found on and not both could be read."""
        if (self.receives and self.sends) or self.priorities:
            return True
        return None if self.priorities is None or None in (self.receives, self.sends) else False


@dataclass(frozen=True, slots=True)
class NetManager:
    """The program that manages an interface: it makes its settings at every start. ``file``: the .network file that
    systemd-networkd uses.
    """

    program: Literal["NetworkManager", "systemd-networkd", "netplan", "ifupdown"]
    file: str | None = None


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface.

    ``speed_mbps``: what the driver tells, in Mbit/s; None where it tells nothing, as without a carrier. ``mtu`` in
    bytes. ``enabled``: whether it is switched on (IFF_UP). ``master``: the bridge or bond that it is part of;
    ``members``: its own, if it is one. ``parent``: what a VLAN or the like stands on. ``label``: what the system calls
    it, such as ``Thunderbolt 1``. ``thunderbolt``: the name of the `ThunderboltPeer` or `ThunderboltPort` that it
    belongs to. ``mac_random``: the hardware address is made up anew at every start. ``flow_control``: of those that
    RoCE goes over. ``manager``: None where no program was found that manages it.
    """

    name: str
    path: str
    kind: NetKind = "virtual"
    label: str | None = None
    driver: str | None = None
    module: str | None = None
    pci_address: str | None = None
    thunderbolt: str | None = None
    speed_mbps: int | None = None
    duplex: str | None = None
    mtu: int | None = None
    carrier: bool | None = None
    operstate: str | None = None
    enabled: bool | None = None
    mac: str | None = None
    mac_random: bool | None = None
    addresses: tuple[NetAddress, ...] = ()
    wireless: bool = False
    master: str | None = None
    members: tuple[str, ...] = ()
    parent: str | None = None
    counters: NetCounters = field(default_factory=NetCounters)
    flow_control: FlowControl | None = None
    manager: NetManager | None = None

    @property
    def speed_gb_s(self) -> float | None:
        return None if self.speed_mbps is None else self.speed_mbps / 1000


@dataclass(frozen=True, slots=True)
class Route:
    """``destination``: ``default`` or a network such as ``10.0.0.0/24``."""

    destination: str
    netdev: str | None = None
    gateway: str | None = None
    source: str | None = None
    metric: int | None = None

    @property
    def version(self) -> Literal[4, 6] | None:
        """None for a default route without a gateway, which may be either."""
        text = self.gateway or self.source or ("" if self.destination == "default" else self.destination)
        return None if not text else 6 if ":" in text else 4
