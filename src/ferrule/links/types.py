"""What one machine has for talking to others, as it was read: cables, interfaces, RDMA devices and their PCIe links.

All of it is plain data. ``None`` means that the machine does not say, or that what it says makes no sense; the latter
is listed in `Inventory.unreadable`. A field ``path`` is where the thing was found in the tree, so that a finding can
quote what was read there (`Inventory.evidence`). Speeds of cables are in Gbit/s (10^9 bits) and count one direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

UNLIMITED_BYTES = (1 << 63) - 1
"""A limit that is no limit, so that limits can be compared."""

System = Literal["linux", "macos", "unknown"]
NetKind = Literal["thunderbolt", "ethernet", "infiniband", "wifi", "bridge", "bond", "virtual", "loopback"]
IommuMode = Literal["off", "passthrough", "translated"]
Evidence = tuple[str, str]
"""Where it was read (a path, or ``$ command``) and the line that was read there."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something that is there and could not be understood, or should be there and could not be read."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded kernel module. ``taint``: the kernel's letters, such as ``OE`` (O out of tree, E not signed)."""

    name: str
    taint: str = ""

    @property
    def unsigned(self) -> bool:
        return "E" in self.taint


@dataclass(frozen=True, slots=True)
class Iommu:
    """``groups``: how many; ``types``: how many groups are of each type, such as ``(("DMA-FQ", 20),)``."""

    groups: int
    types: tuple[tuple[str, int], ...] = ()

    @property
    def mode(self) -> IommuMode:
        """Off without groups; translated as soon as one group translates addresses."""
        if not self.groups:
            return "off"
        return "passthrough" if self.types and all(name == "identity" for name, _ in self.types) else "translated"


@dataclass(frozen=True, slots=True)
class Clock:
    """``synchronized``: whether the system says that its clock follows a server. ``offset_seconds``: from it."""

    synchronized: bool | None = None
    service: str | None = None
    offset_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The computer and its system.

    ``memlock_bytes``: memory that this user may pin (`UNLIMITED_BYTES` if there is no limit);
    ``memlock_hard_bytes``: how far that can be raised without root. ``available_modules``: those of the kernel's that
    were looked for and are there, loaded or not. ``rdma_ctl``: what macOS says, such as ``enabled``.
    ``tree``: ``live``, or the name of the record.
    """

    tree: str
    system: System = "unknown"
    name: str | None = None
    os_name: str | None = None
    os_id: str | None = None
    os_like: tuple[str, ...] = ()
    os_version: str | None = None
    os_build: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    vendor: str | None = None
    product: str | None = None
    bios: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    boot_command_line: tuple[str, ...] | None = None
    iommu: Iommu | None = None
    secure_boot: bool | None = None
    lockdown: str | None = None
    modules: tuple[Module, ...] = ()
    available_modules: tuple[str, ...] | None = None
    memlock_bytes: int | None = None
    memlock_hard_bytes: int | None = None
    clock: Clock | None = None
    rdma_ctl: str | None = None

    def module(self, name: str) -> Module | None:
        """The loaded module of that name; ``-`` and ``_`` are the same to the kernel."""
        wanted = name.replace("-", "_")
        return next((one for one in self.modules if one.name.replace("-", "_") == wanted), None)


@dataclass(frozen=True, slots=True)
class NhiRings:
    """What the driver tells of the host controller's rings.

    ``vectors``: MSI-X interrupts, of which each ring in use takes one. ``parameters``: the modules' settings, such as
    ``("thunderbolt_net.e2e", "Y")``.
    """

    vectors: int | None = None
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ThunderboltRouter:
    """A USB4/Thunderbolt host, dock or other device; not another computer, which is a `ThunderboltPeer`.

    ``route``: 0 for the host itself. ``identity``: a hash of its unique id. ``generation``: 4 is USB4.
    """

    name: str
    path: str
    route: int
    identity: str | None = None
    vendor: str | None = None
    device: str | None = None
    generation: int | None = None
    firmware: str | None = None
    authorized: bool | None = None
    rx_speed_gb_s: float | None = None
    tx_speed_gb_s: float | None = None
    rx_lanes: int | None = None
    tx_lanes: int | None = None


@dataclass(frozen=True, slots=True)
class ThunderboltPort:
    """A socket on the machine. ``link``: what runs on it, such as ``usb4``, ``tbt`` or ``none``.

    ``receptacle``: the number that macOS gives it. ``speed_gb_s``: what the link runs at, or could where
    ``connected`` is false.
    """

    name: str
    path: str
    link: str | None = None
    connected: bool | None = None
    receptacle: str | None = None
    speed_gb_s: float | None = None
    netdev: str | None = None


@dataclass(frozen=True, slots=True)
class Retimer:
    """A chip that refreshes the signal between the controller and the socket, or inside an active cable."""

    name: str
    path: str
    vendor: str | None = None
    device: str | None = None
    firmware: str | None = None


@dataclass(frozen=True, slots=True)
class ThunderboltService:
    """What the other computer offers over the cable. ``key``: ``network`` is IP over Thunderbolt."""

    name: str
    path: str
    key: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class ThunderboltPeer:
    """Another computer at the end of a cable (an XDomain), as this one sees it.

    ``identity``: a hash of its unique id, equal to the `ThunderboltRouter.identity` that it has for itself.
    ``*_speed_gb_s`` are per lane. ``link_gb_s``: the whole link, where the system tells only that. ``port``: the name
    of our `ThunderboltPort`. ``netdevs``: the network interfaces that go over it.
    """

    name: str
    path: str
    route: int
    identity: str | None = None
    vendor: str | None = None
    device: str | None = None
    rx_speed_gb_s: float | None = None
    tx_speed_gb_s: float | None = None
    rx_lanes: int | None = None
    tx_lanes: int | None = None
    link_gb_s: float | None = None
    max_hop_id: int | None = None
    port: str | None = None
    services: tuple[ThunderboltService, ...] = ()
    netdevs: tuple[str, ...] = ()

    @property
    def rx_gb_s(self) -> float | None:
        """All lanes from the other computer to this one."""
        return _together(self.rx_speed_gb_s, self.rx_lanes, self.link_gb_s)

    @property
    def tx_gb_s(self) -> float | None:
        """All lanes from this computer to the other one."""
        return _together(self.tx_speed_gb_s, self.tx_lanes, self.link_gb_s)


def _together(per_lane: float | None, lanes: int | None, whole: float | None) -> float | None:
    return whole if per_lane is None or lanes is None else per_lane * lanes


@dataclass(frozen=True, slots=True)
class ThunderboltDomain:
    """One host controller with everything behind it. ``pci_address``: of its native host interface (NHI)."""

    name: str
    path: str
    security: str | None = None
    iommu_dma_protection: bool | None = None
    pci_address: str | None = None
    rings: NhiRings | None = None
    host: ThunderboltRouter | None = None
    ports: tuple[ThunderboltPort, ...] = ()
    retimers: tuple[Retimer, ...] = ()
    devices: tuple[ThunderboltRouter, ...] = ()
    peers: tuple[ThunderboltPeer, ...] = ()


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
class NetDevice:
    """A network interface.

    ``speed_mbps``: what the driver tells, in Mbit/s; None where it tells nothing, as without a carrier. ``mtu`` in
    bytes. ``enabled``: whether it is switched on (IFF_UP). ``master``: the bridge or bond that it is part of;
    ``members``: its own, if it is one. ``parent``: what a VLAN or the like stands on. ``label``: what the system calls
    it, such as ``Thunderbolt 1``. ``thunderbolt``: the name of the `ThunderboltPeer` or `ThunderboltPort` that it
    belongs to. ``mac_random``: the hardware address is made up anew at every start.
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
    offloads: tuple[tuple[str, bool], ...] | None = None

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


@dataclass(frozen=True, slots=True)
class Gid:
    """``type``: ``RoCE v1`` (the kernel's ``IB/RoCE v1``, also plain InfiniBand) or ``RoCE v2``.

    ``address``: the IP address that it stands for, where it does.
    """

    index: int
    value: str
    type: str | None = None
    netdev: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """``rate_gb_s`` in Gbit/s. ``errors``: the kernel's counters that are not zero and should be."""

    number: int
    path: str
    state: str | None = None
    phys_state: str | None = None
    rate_text: str | None = None
    rate_gb_s: float | None = None
    link_layer: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[str, ...] = ()
    active_mtu: int | None = None
    max_mtu: int | None = None
    errors: tuple[tuple[str, int], ...] = ()

    @property
    def netdevs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gid.netdev for gid in self.gids if gid.netdev))


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """``software``: emulated in the kernel (``rxe``, ``siw``), on a network interface and slower than TCP."""

    name: str
    path: str
    node_type: str | None = None
    firmware: str | None = None
    board: str | None = None
    hca_type: str | None = None
    driver: str | None = None
    pci_address: str | None = None
    software: bool = False
    ports: tuple[RdmaPort, ...] = ()


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCIe device and its link towards the processor.

    ``*_gt_s``: gigatransfers per second and lane (8.0 is PCIe 3.0, 16.0 is 4.0, 32.0 is 5.0); ``*_width``: lanes.
    ``upstream``: the bridges between it and the processor, the nearest first, the root port last. The first one's
    ``max_*`` are what the slot can do. ``iommu_type``: ``identity``, ``DMA``, ``DMA-FQ``.
    """

    address: str
    path: str
    class_code: int | None = None
    class_name: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    vendor: str | None = None
    device: str | None = None
    driver: str | None = None
    current_gt_s: float | None = None
    max_gt_s: float | None = None
    current_width: int | None = None
    max_width: int | None = None
    numa_node: int | None = None
    iommu_type: str | None = None
    upstream: tuple[PcieLink, ...] = ()

    @property
    def slot(self) -> PcieLink | None:
        """The other end of this link: a root port, or the downstream port of a switch."""
        return self.upstream[0] if self.upstream else None

    @property
    def current_gb_s(self) -> float | None:
        """Gbit/s each way after the line code, before packet headers."""
        return pcie_gb_s(self.current_gt_s, self.current_width)

    @property
    def max_gb_s(self) -> float | None:
        return pcie_gb_s(self.max_gt_s, self.max_width)


def pcie_gb_s(gt_s: float | None, width: int | None) -> float | None:
    """The line code takes 2 of 10 bits up to 5 GT/s and 2 of 130 above (PCI Express base specification)."""
    if gt_s is None or width is None:
        return None
    return gt_s * width * (0.8 if gt_s <= 5 else 128 / 130)


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the system that matters to cables, such as ``NetworkManager``. ``state`` as systemd tells it."""

    name: str
    state: str

    @property
    def active(self) -> bool:
        return self.state == "active"


@dataclass(frozen=True, slots=True)
class Firewall:
    """``kind``: such as ``firewalld``, ``ufw``, ``nftables``, ``macos``. ``active``: None if that could not be read.

    ``input_policy``: what happens to incoming packets that no rule names: ``accept`` or ``drop``.
    """

    kind: str
    active: bool | None = None
    input_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that was found on one machine. ``seen``: every path or ``$ command`` that was read, and what stood there."""

    machine: Machine
    thunderbolt: tuple[ThunderboltDomain, ...] = ()
    netdevs: tuple[NetDevice, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    pcie: tuple[PcieLink, ...] = ()
    routes: tuple[Route, ...] = ()
    firewalls: tuple[Firewall, ...] = ()
    services: tuple[Service, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    seen: Mapping[str, str] = field(default_factory=dict)

    @property
    def peers(self) -> tuple[ThunderboltPeer, ...]:
        return tuple(peer for domain in self.thunderbolt for peer in domain.peers)

    def netdev(self, name: str | None) -> NetDevice | None:
        return next((one for one in self.netdevs if one.name == name), None)

    def pcie_link(self, address: str | None) -> PcieLink | None:
        return next((one for one in self.pcie if one.address == address), None)

    def service(self, name: str) -> Service | None:
        return next((one for one in self.services if one.name == name), None)

    def evidence(self, *wheres: str) -> tuple[Evidence, ...]:
        """What stood at these places, the first line of each; those that were not read are left out."""
        lines = ((where, self.seen[where].strip().splitlines()) for where in wheres if where in self.seen)
        return tuple((where, found[0] if found else "") for where, found in lines)
