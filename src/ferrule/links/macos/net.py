"""Network interfaces, addresses and routes, from ``ifconfig``, ``networksetup`` and ``netstat``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import replace

from ferrule.config import is_address
from ferrule.links.linux.addresses import checked
from ferrule.links.reader import Reader, whole
from ferrule.links.types.net import NetAddress, NetCounters, NetDevice, NetKind, Route

IFCONFIG = "ifconfig -a"
PORTS = "networksetup -listallhardwareports"
COUNTERS = "netstat -ibn"
ROUTES = "netstat -rn"
COMMANDS = (IFCONFIG, PORTS, COUNTERS, ROUTES)

_HEAD = re.compile(r"(\w[\w.-]{0,30}): flags=[0-9a-f]+<([A-Z0-9_,]*)>(?: .*)? mtu ([0-9]{1,6})")
_MEDIA = re.compile(r"([0-9]{1,6}|[0-9]{1,3}G)base", re.IGNORECASE)
_VIRTUAL = re.compile(r"(?:utun|awdl|llw|anpi|gif|stf|ap|vmenet|feth)[0-9]+")


def hardware_ports(reader: Reader) -> dict[str, str]:
    """The interface of each hardware port, such as ``Thunderbolt 1`` to ``en2``."""
    found: dict[str, str] = {}
    port = ""
    for line in (reader.output(PORTS, needed=True) or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "Hardware Port":
            port = value
        elif key == "Device" and port and value:
            found[port] = value
            port = ""
    return found


def read_netdevs(reader: Reader, ports: dict[str, str]) -> tuple[NetDevice, ...]:
    labels = {device: port for port, device in ports.items()}
    counters = _counters(reader.output(COUNTERS))
    blocks: list[list[str]] = []
    for line in (reader.output(IFCONFIG, needed=True) or "").splitlines():
        if line[:1].isspace() and blocks:
            blocks[-1].append(line.strip())
        elif line.strip():
            blocks.append([line.strip()])
    found = (_netdev(reader, block, labels, counters) for block in blocks)
    devices = [one for one in found if one is not None]
    masters = {member: one.name for one in devices for member in one.members}
    return tuple(replace(one, master=masters.get(one.name)) for one in devices)


def _netdev(
    reader: Reader, block: list[str], labels: dict[str, str], counters: dict[str, NetCounters]
) -> NetDevice | None:
    head = _HEAD.match(block[0])
    if head is None:
        reader.problem(f"$ {IFCONFIG}", f"{block[0][:60]!r} is no interface")
        return None
    name, flags = head[1], head[2].split(",")
    where = reader.note(f"$ {IFCONFIG}: {name}", block[0])
    status = _field(block, "status")
    media = _field(block, "media") or ""
    kind = _kind(name, labels.get(name))
    return NetDevice(
        name=name,
        path=where,
        kind=kind,
        label=labels.get(name),
        thunderbolt=labels.get(name) if kind == "thunderbolt" else None,
        speed_mbps=_speed(media),
        duplex="full" if "full-duplex" in media else "half" if "half-duplex" in media else None,
        mtu=whole(head[3]),
        carrier=None if status is None else status == "active",
        operstate=status,
        enabled="UP" in flags,
        mac=_mac(block),
        addresses=tuple(_addresses(reader, where, block)),
        wireless=kind == "wifi",
        members=tuple(match[1] for line in block if (match := re.match(r"member: (\w{1,16}) ", line))),
        counters=counters.get(name, NetCounters()),
    )


def _kind(name: str, label: str | None) -> NetKind:
    if name.startswith("lo"):
        return "loopback"
    if name.startswith("bridge"):
        return "bridge"
    if name.startswith("bond"):
        return "bond"
    if label is None or _VIRTUAL.fullmatch(name):
        return "virtual"
    if label == "Wi-Fi":
        return "wifi"
    return "thunderbolt" if re.fullmatch("Thunderbolt [0-9]+", label) else "ethernet"


def _field(block: list[str], key: str) -> str | None:
    return next((line.partition(":")[2].strip() for line in block if line.startswith(f"{key}:")), None)


def _speed(media: str) -> int | None:
    """Mbit/s of ``autoselect (10Gbase-T <full-duplex>)``."""
    match = _MEDIA.search(media)
    if match is None:
        return None
    return int(match[1][:-1]) * 1000 if match[1][-1] in "Gg" else int(match[1])


def _mac(block: list[str]) -> str | None:
    match = next(
        (match for line in block if (match := re.match(r"ether ((?:[0-9a-f]{2}:){5}[0-9a-f]{2})", line))), None
    )
    return match[1] if match else None


def _addresses(reader: Reader, where: str, block: list[str]) -> Iterator[NetAddress]:
    for line in block:
        match = re.match(r"inet6? (\S{2,64}) (?:--> \S+ )?(?:netmask (0x[0-9a-f]{8})|prefixlen ([0-9]{1,3}))", line)
        if match:
            prefix = int(match[3]) if match[3] else int(match[2], 16).bit_count()
            link = match[1].startswith(("fe80:", "169.254."))
            one = checked(reader, where, match[1], prefix, "link" if link else "global")
            if one is not None:
                yield one


def _counters(text: str | None) -> dict[str, NetCounters]:
    """The rows of the links themselves; the address may be missing, so columns are counted from the right."""
    found = {}
    for line in (text or "").splitlines():
        parts = line.split()
        if len(parts) >= 10 and parts[2].startswith("<Link#"):
            numbers = [whole(part) for part in parts[-7:]]
            names = ("rx_packets", "rx_errors", "rx_bytes", "tx_packets", "tx_errors", "tx_bytes", "collisions")
            found[parts[0].rstrip("*")] = NetCounters(**dict(zip(names, numbers, strict=True)))
    return found


def read_routes(reader: Reader) -> tuple[Route, ...]:
    """IPv4 and IPv6; what leads to single hosts of the own network (``UHL``) is left out."""
    found = []
    for line in (reader.output(ROUTES) or "").splitlines():
        parts = line.split()
        if len(parts) < 4 or not re.fullmatch("U[A-Za-z0-9]*", parts[2]) or "H" in parts[2]:
            continue
        destination = _destination(parts[0])
        if destination is not None:
            gateway = parts[1].partition("%")[0]
            found.append(Route(destination, parts[3], gateway if is_address(gateway) else None))
    return tuple(found)


def _destination(text: str) -> str | None:
    """``default``, or ``169.254`` and ``10.5/24`` with all their parts."""
    if text == "default":
        return text
    network, _, prefix = text.partition("/")
    network = network.partition("%")[0]
    if ":" not in network:
        parts = network.split(".")
        prefix = prefix or str(8 * len(parts))
        network = ".".join([*parts, *["0"] * (4 - len(parts))])
    try:
        return str(ipaddress.ip_network(f"{network}/{prefix}" if prefix else network, strict=False))
    except ValueError:
        return None
