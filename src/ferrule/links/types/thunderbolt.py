"""USB4 and Thunderbolt: controllers, sockets, cables and the computers at their other end. Speeds are in Gbit/s."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NhiRings:
    """Rings of the host controller, as the driver tells.

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
    """Service that the other computer offers over the cable. ``key``: ``network`` is IP over Thunderbolt."""

    name: str
    path: str
    key: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class ThunderboltPeer:
    """Another computer at the end of a cable (an XDomain), as this one sees it.

    ``identity``: a hash of its unique id, equal to the `ThunderboltRouter.identity` that it has for itself. ``route``:
    above 255 there is a dock between. ``*_speed_gb_s`` are per lane. ``link_gb_s``: the whole link, where the system
    tells only that. ``port``: the name of our `ThunderboltPort`. ``netdevs``: the network interfaces that go over it.
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
