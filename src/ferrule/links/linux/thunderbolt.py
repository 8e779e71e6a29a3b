"""USB4 and Thunderbolt: ``/sys/bus/thunderbolt``.

The formats are those of the kernel's ``Documentation/ABI/testing/sysfs-bus-thunderbolt``. Names on that bus tell what a
device is: ``domain0``, a host or device ``0-0``, ``0-301``, a computer at the end of a cable ``0-1`` (an XDomain, which
looks the same but has no ``authorized``), its service ``0-1.0``, a retimer ``0-0:1.1``, a socket ``usb4_port1``.
"""

from __future__ import annotations

import re

from ferrule.links.reader import PCI_ADDRESS, Reader, identity
from ferrule.links.types.thunderbolt import (
    NhiRings,
    Retimer,
    ThunderboltDomain,
    ThunderboltPeer,
    ThunderboltPort,
    ThunderboltRouter,
    ThunderboltService,
)

BUS = "/sys/bus/thunderbolt/devices"

_ROUTER = re.compile(r"([0-9]{1,4})-([0-9a-f]{1,16})")
_SPEED = r"([0-9]{1,3}(?:\.[0-9]{1,2})?) Gb/s"
_MODULES = ("thunderbolt", "thunderbolt_net")
_SECRET = re.compile(r"psk|key|secret|pass|token", re.IGNORECASE)
_MAX_LANES = 4
_ADAPTER = 0x3F


def read_thunderbolt(reader: Reader) -> tuple[ThunderboltDomain, ...]:
    names = reader.names(BUS)
    parameters = _parameters(reader)
    domains = [name for name in names if re.fullmatch(r"domain[0-9]{1,4}", name)]
    return tuple(_domain(reader, name, names, parameters) for name in domains)


def _domain(reader: Reader, name: str, names: list[str], parameters: tuple[tuple[str, str], ...]) -> ThunderboltDomain:
    path = f"{BUS}/{name}"
    number = name.removeprefix("domain")
    nhi = _above(reader.resolve(path))
    ports = _ports(reader, f"{BUS}/{number}-0")
    routers: list[ThunderboltRouter] = []
    peers: list[ThunderboltPeer] = []
    for one in names:
        match = _ROUTER.fullmatch(one)
        if match is None or match[1] != number:
            continue
        route = int(match[2], 16)
        if route and _is_peer(reader, f"{BUS}/{one}"):
            peers.append(_peer(reader, one, route, names, ports))
        else:
            routers.append(_router(reader, one, route))
    host = next((one for one in routers if one.route == 0), None)
    return ThunderboltDomain(
        name=name,
        path=path,
        security=reader.text(f"{path}/security"),
        iommu_dma_protection=reader.flag(f"{path}/iommu_dma_protection"),
        pci_address=nhi,
        rings=_rings(reader, nhi, parameters),
        host=host,
        ports=ports,
        retimers=tuple(_retimer(reader, one) for one in names if re.fullmatch(rf"{number}-[0-9a-f]+:[0-9.]+", one)),
        devices=tuple(one for one in routers if one is not host),
        peers=tuple(peers),
    )


def _above(path: str | None) -> str | None:
    """The PCI address of the controller that a domain belongs to: the directory above it."""
    last = "" if path is None else path.rpartition("/")[0].rpartition("/")[2]
    return last if PCI_ADDRESS.fullmatch(last) else None


def _rings(reader: Reader, nhi: str | None, parameters: tuple[tuple[str, str], ...]) -> NhiRings | None:
    vectors = reader.names(f"/sys/bus/pci/devices/{nhi}/msi_irqs") if nhi else []
    if not vectors and not parameters:
        return None
    return NhiRings(len(vectors) or None, parameters)


def _parameters(reader: Reader) -> tuple[tuple[str, str], ...]:
    found = []
    for module in _MODULES:
        folder = f"/sys/module/{module}/parameters"
        for name in reader.names(folder):
            value = None if _SECRET.search(name) else reader.text(f"{folder}/{name}")
            if value is not None:
                found.append((f"{module}.{name}", value))
    return tuple(found)


def _is_peer(reader: Reader, path: str) -> bool:
    kind = reader.block(f"{path}/uevent") or ""
    if "DEVTYPE=" in kind:
        return "DEVTYPE=thunderbolt_xdomain" in kind
    return not reader.exists(f"{path}/authorized")


def _router(reader: Reader, name: str, route: int) -> ThunderboltRouter:
    path = f"{BUS}/{name}"
    return ThunderboltRouter(
        name=name,
        path=path,
        route=route,
        identity=identity(reader.text(f"{path}/unique_id")),
        vendor=reader.text(f"{path}/vendor_name"),
        device=reader.text(f"{path}/device_name"),
        generation=reader.number(f"{path}/generation", 1, 9),
        firmware=reader.text(f"{path}/nvm_version"),
        authorized=_authorized(reader, path),
        rx_speed_gb_s=_speed(reader, f"{path}/rx_speed"),
        tx_speed_gb_s=_speed(reader, f"{path}/tx_speed"),
        rx_lanes=reader.number(f"{path}/rx_lanes", 0, _MAX_LANES),
        tx_lanes=reader.number(f"{path}/tx_lanes", 0, _MAX_LANES),
    )


def _authorized(reader: Reader, path: str) -> bool | None:
    value = reader.number(f"{path}/authorized", 0, 2)
    return None if value is None else value > 0


def _peer(
    reader: Reader, name: str, route: int, names: list[str], ports: tuple[ThunderboltPort, ...]
) -> ThunderboltPeer:
    path = f"{BUS}/{name}"
    port = f"usb4_port{route & _ADAPTER}"  # a route's lowest byte is the adapter of the host that it leaves by
    services = tuple(_service(reader, one) for one in names if re.fullmatch(rf"{re.escape(name)}\.[0-9]{{1,4}}", one))
    return ThunderboltPeer(
        name=name,
        path=path,
        route=route,
        identity=identity(reader.text(f"{path}/unique_id")),
        vendor=reader.text(f"{path}/vendor_name"),
        device=reader.text(f"{path}/device_name"),
        rx_speed_gb_s=_speed(reader, f"{path}/rx_speed"),
        tx_speed_gb_s=_speed(reader, f"{path}/tx_speed"),
        rx_lanes=reader.number(f"{path}/rx_lanes", 0, _MAX_LANES),
        tx_lanes=reader.number(f"{path}/tx_lanes", 0, _MAX_LANES),
        max_hop_id=reader.number(f"{path}/maxhopid", 0, 0xFFFF),
        port=port if port in {one.name for one in ports} else None,
        services=services,
        netdevs=tuple(netdev for one in services for netdev in reader.names(f"{one.path}/net")),
    )


def _service(reader: Reader, name: str) -> ThunderboltService:
    path = f"{BUS}/{name}"
    return ThunderboltService(name, path, reader.text(f"{path}/key"), reader.last(f"{path}/driver"))


def _speed(reader: Reader, path: str) -> float | None:
    return reader.matched(path, _SPEED, lambda match: float(match[1]))


def _ports(reader: Reader, host: str) -> tuple[ThunderboltPort, ...]:
    found = []
    for name in reader.names(host):
        if re.fullmatch(r"usb4_port[0-9]{1,2}", name):
            link = reader.text(f"{host}/{name}/link")
            connected = None if link is None else link != "none"
            found.append(ThunderboltPort(name, f"{host}/{name}", link, connected))
    return tuple(found)


def _retimer(reader: Reader, name: str) -> Retimer:
    path = f"{BUS}/{name}"
    return Retimer(
        name,
        path,
        reader.text(f"{path}/vendor"),
        reader.text(f"{path}/device"),
        reader.text(f"{path}/nvm_version"),
    )
