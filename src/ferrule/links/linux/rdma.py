"""RDMA devices: ``/sys/class/infiniband``.

The formats are those of the kernel's ``Documentation/ABI/stable/sysfs-class-infiniband``. The MTU of a port is not
there; ``ibv_devinfo`` tells it where it is installed.
"""

from __future__ import annotations

import ipaddress
import re

from ferrule.links.devinfo import DEVINFO, port_mtus
from ferrule.links.reader import PCI_ADDRESS, Reader
from ferrule.links.types.rdma import Gid, RdmaDevice, RdmaPort

CLASS = "/sys/class/infiniband"

ERROR_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
    "VL15_dropped",
)
HARDWARE_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "rx_icrc_encapsulated",
    "duplicate_request",
)
OWN_DRIVER = "ferrule_rdma"
"""Of RDMA devices that are USB4 cables (docs/driver.md)."""
OWN_DESCRIPTION = "ferrule"
"""Node description of our driver's devices, whatever udev names them."""
_ENUMERATED = r"[0-9]{1,3}: ?(.+)"
_MAX_GIDS = 1024
_MAX_LID = 0xFFFFFFFF


def roce_netdevs(devices: tuple[RdmaDevice, ...]) -> frozenset[str]:
    """The Ethernet interfaces that cards do RDMA over."""
    ports = (port for device in devices if not device.software for port in device.ports)
    return frozenset(name for port in ports if port.link_layer == "Ethernet" for name in port.netdevs)


def read_rdma(reader: Reader) -> tuple[RdmaDevice, ...]:
    names = reader.names(CLASS)
    mtus = port_mtus(reader.output(DEVINFO)) if names else {}
    return tuple(_device(reader, name, mtus) for name in names)


def _device(reader: Reader, name: str, mtus: dict[tuple[str, int], tuple[int, int]]) -> RdmaDevice:
    path = f"{CLASS}/{name}"
    node_type = reader.matched(f"{path}/node_type", _ENUMERATED, lambda match: match[1])
    device = reader.resolve(f"{path}/device")
    address = device.rpartition("/")[2] if device else ""
    driver = reader.last(f"{path}/device/driver") if device else _emulated(reader, path, node_type)
    # Ours hang on the cable's controller. Elsewhere the description may hold the host's name, so it is not read.
    if driver in (None, "thunderbolt") and (reader.text(f"{path}/node_desc") or "").strip() == OWN_DESCRIPTION:
        driver = OWN_DRIVER
    ports = [one for one in reader.names(f"{path}/ports") if re.fullmatch("[0-9]{1,3}", one)]
    return RdmaDevice(
        name=name,
        path=path,
        node_type=node_type,
        firmware=reader.text(f"{path}/fw_ver"),
        board=reader.text(f"{path}/board_id"),
        hca_type=reader.text(f"{path}/hca_type"),
        driver=driver,
        pci_address=address if PCI_ADDRESS.fullmatch(address) else None,
        software=device is None and driver != OWN_DRIVER,
        ports=tuple(_port(reader, name, int(one), mtus.get((name, int(one)))) for one in ports),
    )


def _emulated(reader: Reader, path: str, node_type: str | None) -> str | None:
    """Soft-RoCE names the interface that it stands on; Soft-iWARP is an RNIC."""
    if reader.exists(f"{path}/parent"):
        return "rxe"
    return "siw" if node_type == "RNIC" else None


def _port(reader: Reader, device: str, number: int, mtus: tuple[int, int] | None) -> RdmaPort:
    path = f"{CLASS}/{device}/ports/{number}"
    rate = reader.text(f"{path}/rate")
    layer = reader.text(f"{path}/link_layer")
    gids = _gids(reader, path, layer)
    return RdmaPort(
        number=number,
        path=path,
        state=reader.matched(f"{path}/state", _ENUMERATED, lambda match: match[1]),
        phys_state=reader.matched(f"{path}/phys_state", _ENUMERATED, lambda match: match[1]),
        rate_text=rate,
        rate_gb_s=_rate(reader, f"{path}/rate", rate),
        link_layer=layer,
        lid=reader.number(f"{path}/lid", 0, _MAX_LID),
        sm_lid=reader.number(f"{path}/sm_lid", 0, _MAX_LID),
        gids=gids,
        pkeys=_pkeys(reader, f"{path}/pkeys"),
        netdevs=_netdevs(reader, device, number, gids),
        active_mtu=mtus[0] if mtus else None,
        max_mtu=mtus[1] if mtus else None,
        errors=_errors(reader, path),
    )


def _rate(reader: Reader, path: str, text: str | None) -> float | None:
    """Such as ``40 Gb/sec (4X QDR)``."""
    if text is None:
        return None
    match = re.match(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec", text)
    if match is None:
        reader.problem(path, f"{text!r} is no rate")
        return None
    return float(match[1])


def _gids(reader: Reader, port: str, layer: str | None) -> tuple[Gid, ...]:
    """The entries that are in use. The kernel's type ``IB/RoCE v1`` is RoCE only on Ethernet."""
    found = []
    for name in reader.names(f"{port}/gids")[:_MAX_GIDS]:
        value = reader.text(f"{port}/gids/{name}")
        if value is None or not name.isdecimal() or not value.strip("0:"):
            continue
        try:
            gid = ipaddress.IPv6Address(value)
        except ValueError:
            reader.problem(f"{port}/gids/{name}", f"{value!r} is no GID")
            continue
        if not int(gid) & ((1 << 64) - 1):
            continue  # only the subnet's prefix: no port has it
        kind = reader.text(f"{port}/gid_attrs/types/{name}")
        if kind == "IB/RoCE v1":
            kind = None if layer == "InfiniBand" else "RoCE v1"
        netdev = reader.text(f"{port}/gid_attrs/ndevs/{name}")
        found.append(Gid(int(name), value, kind, netdev, str(gid.ipv4_mapped or gid)))
    return tuple(found)


def _pkeys(reader: Reader, folder: str) -> tuple[str, ...]:
    values = (reader.number(f"{folder}/{name}", 0, 0xFFFF) for name in reader.names(folder)[:_MAX_GIDS])
    return tuple(f"0x{value:04x}" for value in values if value)


def _netdevs(reader: Reader, device: str, number: int, gids: tuple[Gid, ...]) -> tuple[str, ...]:
    """The interfaces of this port: those of its GIDs, and of its adapter if that numbers them the same."""
    found = dict.fromkeys(gid.netdev for gid in gids if gid.netdev)
    folder = f"{CLASS}/{device}/device/net"
    for name in reader.names(folder):
        if reader.number(f"{folder}/{name}/dev_port", 0, 255) == number - 1:
            found[name] = None
    return tuple(found)


def _errors(reader: Reader, port: str) -> tuple[tuple[str, int], ...]:
    found = []
    for folder, names in (("counters", ERROR_COUNTERS), ("hw_counters", HARDWARE_COUNTERS)):
        for name in names:
            value = reader.number(f"{port}/{folder}/{name}")
            if value:
                found.append((name, value))
    return tuple(found)
