"""The RDMA ports of this host, as its libraries and its kernel show them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule import _native
from ferrule.config import VerbsSettings
from ferrule.fabric.join.addresses import host_addresses
from ferrule.fabric.transports.verbs.paths import Gid, Port, Wire, gid_address, usable_gids

if TYPE_CHECKING:
    from ferrule._native import VerbsPort

_CLASS = Path("/sys/class/infiniband")
_VERSIONS = {"IB/RoCE v1": 1, "RoCE v2": 2}


@dataclass(frozen=True)
class Found:
    """The ports to use, and why there are none or fewer than one might expect."""

    ports: tuple[Port, ...]
    reason: str = ""


@dataclass(frozen=True)
class Address:
    """Of a network interface; ``mac`` in bytes, empty if it has none."""

    text: str
    prefix: int
    mac: bytes


def find_ports(settings: VerbsSettings, *, software: bool) -> Found:
    """The active ports of the devices that ``settings`` allow.

    ``software``: emulated devices too, even if the settings do not name them.
    """
    try:
        listed = _native.verbs_ports()
    except OSError as error:
        return Found((), str(error))
    return choose_ports(listed, settings, _addresses() if listed else (), software=software)


def choose_ports(
    listed: Sequence[VerbsPort], settings: VerbsSettings, addresses: Sequence[Address], *, software: bool
) -> Found:
    """`find_ports`, of what the native module listed."""
    there = sorted({fields["device"] for fields in listed})
    reasons = [f"{name} is named in FERRULE_VERBS_DEVICES but not there" for name in settings.missing(there)]
    ports = []
    for fields in listed:
        name = fields["device"]
        if not settings.allows(name):
            reasons.append(f"FERRULE_VERBS_DEVICES leaves {name} out")
        elif fields["problem"]:
            reasons.append(f"{name}: {fields['problem']}")
        elif not fields["active"]:
            reasons.append(f"port {fields['port']} of {name} has no link")
        else:
            port = _port(fields, addresses)
            if port.software and not software and not settings.names(name):
                reasons.append(
                    f"{name} is {port.software}, slower than TCP; name it in FERRULE_VERBS_DEVICES to use it"
                )
            else:
                ports.append(port)
    if not there:
        reasons.append("there is no RDMA device")
    return Found(tuple(ports), "; ".join(dict.fromkeys(reasons)))


def _port(fields: VerbsPort, addresses: Sequence[Address]) -> Port:
    wire: Wire = "infiniband" if fields["infiniband"] else "iwarp" if fields["iwarp"] else "roce"
    device, number = fields["device"], fields["port"]
    values = fields["gids"]
    subnet = ""
    gids: tuple[Gid, ...] = ()
    if wire == "infiniband":
        subnet = values[0][:8].hex() if 0 in values else ""
    elif wire == "roce":
        prefixes = {one.text: one.prefix for one in addresses}
        found = []
        for index, value in values.items():
            address = gid_address(value)
            found.append(Gid(index, address, prefixes.get(address, 0), _version(device, number, index)))
        gids = usable_gids(found)
    else:
        # The GID of an iWARP port is its interface's hardware address.
        hardware = {value[:6] for value in values.values()}
        own = [one for one in addresses if one.mac in hardware and not ipaddress.ip_address(one.text).is_link_local]
        gids = tuple(Gid(0, one.text, one.prefix) for one in own)
    return Port(device, number, wire, fields["vendor"], fields["mtu"], fields["lid"], subnet, gids)


def _version(device: str, port: int, index: int) -> int:
    """0 on systems that do not tell."""
    try:
        text = (_CLASS / device / "ports" / str(port) / "gid_attrs" / "types" / str(index)).read_text()
    except OSError:
        return 0
    return _VERSIONS.get(text.strip(), 0)


def _addresses() -> tuple[Address, ...]:
    return tuple(
        Address(address, prefix, bytes.fromhex(mac.replace(":", "").replace("-", "")))
        for _, mac, address, prefix in host_addresses()
    )
