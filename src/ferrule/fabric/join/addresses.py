"""Interfaces by which other ranks reach a host, and pairs of two hosts' interfaces that a cable may join."""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import ConfigError

_VIRTUAL = re.compile(
    r"(docker|veth|virbr|vnet|cni|flannel|cali|lxc|lxd|podman|kube|dummy|ifb|tun|tap|wg|tailscale|zt|vmnet|vboxnet"
    r"|awdl|llw|anpi|utun|gif|stf|frl)\S*|ap\d+|br-[0-9a-f]{12}"
)
"""Bridges to this host's own containers and machines, tunnels through other interfaces, and the interfaces of our
driver, which carry nothing: no cables of their own. Where a tunnel is the only way, the address by which the ranks met
still leads through it."""

_MAX_GUESSES = 16
_RANDOM = "1"
"""In addr_assign_type: the kernel made the hardware address up, for an interface that is new at every start."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Interface:
    """An interface with one of its addresses, and the port on which its rank listens there.

    ``prefix``: the length of the subnet's part of the address; ``mtu`` in bytes; ``speed`` in Mbit/s, 0 when unknown.
    ``identity``: tells it from others of its host, also after a restart; empty where nothing does.
    """

    name: str
    address: str
    prefix: int
    mtu: int = 0
    speed: int = 0
    port: int = 0
    identity: str = ""

    @property
    def ip(self) -> IPAddress:
        return ipaddress.ip_address(self.address)

    def shares_subnet(self, other: Interface) -> bool:
        """Whether each believes that the other is on its own subnet."""
        return in_subnet(self.address, other.address, other.prefix) and in_subnet(
            other.address, self.address, self.prefix
        )


def in_subnet(address: str, other: str, prefix: int) -> bool:
    """Whether an address is on the subnet of another one with a prefix of that length."""
    return ipaddress.ip_address(address) in ipaddress.ip_network((other, prefix), strict=False)


def host_addresses() -> Iterator[tuple[str, str, str, int]]:
    """This host's: an interface's name, its hardware address, an IP address of it, and its prefix's length."""
    import psutil  # a few milliseconds, which a job on one host need not spend

    for name, entries in psutil.net_if_addrs().items():
        mac = next((entry.address for entry in entries if entry.family == psutil.AF_LINK), "")
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and entry.netmask:
                prefix = int(ipaddress.ip_address(entry.netmask)).bit_count()
                yield name, mac, entry.address.partition("%")[0], prefix


def own_interfaces(names: Sequence[str] = ()) -> tuple[Interface, ...]:
    """The usable interfaces of this host; see `usable`."""
    import psutil

    stats = psutil.net_if_stats()
    found = []
    for name, mac, address, prefix in host_addresses():
        if name in stats and stats[name].isup:
            mtu, speed = stats[name].mtu, stats[name].speed
            found.append(Interface(name, address, prefix, mtu, speed, identity=_identity(name, mac, speed)))
    return usable(found, names)


def _identity(name: str, mac: str, speed: int) -> str:
    """The hardware's address, its driver, and the speed that it runs at now."""
    device = Path("/sys/class/net") / name
    try:
        random = (device / "addr_assign_type").read_text().strip() == _RANDOM
    except OSError:
        random = False
    if not mac or random:
        return ""
    driver = device / "device" / "driver"
    return f"{mac} {driver.resolve().name if driver.exists() else '-'} {speed}"


def usable(found: Iterable[Interface], names: Sequence[str] = ()) -> tuple[Interface, ...]:
    """Those among the interfaces (that are up) by which other hosts may be reached, in the order of their names.

    ``names``: only these; and not those that are written ``^name``. Without names, loopback, tunnels and bridges to
    this host's own containers are left out. Raises `ConfigError` for a name that is not there.
    """
    found = sorted(found, key=lambda one: (_natural(one.name), one.ip.version, one.ip.is_link_local, int(one.ip)))
    wanted = {name for name in names if not name.startswith("^")}
    unwanted = {name[1:] for name in names if name.startswith("^")}
    if missing := wanted - {one.name for one in found}:
        there = ", ".join(dict.fromkeys(one.name for one in found))
        raise ConfigError(
            f"FERRULE_INTERFACES names {', '.join(sorted(missing))}, which is not up or has no address here; "
            f"there are {there or 'none'}"
        )
    if wanted:
        return tuple(one for one in found if one.name in wanted - unwanted)
    return tuple(
        one for one in found if one.name not in unwanted and not one.ip.is_loopback and not _VIRTUAL.fullmatch(one.name)
    )


def pairings(one: Sequence[Interface], other: Sequence[Interface]) -> tuple[tuple[Interface, Interface], ...]:
    """Pairs of two hosts' interfaces that a cable may join, in an order on which both hosts agree.

    An interface goes with the first one of the other host on the same subnet that is still free. Where only
    link-local addresses are left, nothing but trying tells which belong together: then there is a guess for each
    pair. ``one`` is the host of the lower rank.
    """
    pairs: list[tuple[Interface, Interface]] = []
    taken: tuple[set[str], set[str]] = (set(), set())
    for version in (4, 6):
        for mine, theirs in itertools.product(_routable(one, version), _routable(other, version)):
            free = mine.name not in taken[0] and theirs.name not in taken[1]
            if free and mine.address != theirs.address and mine.shares_subnet(theirs):
                pairs.append((mine, theirs))
                taken[0].add(mine.name)
                taken[1].add(theirs.name)
    left = [[face for face in faces if face.name not in taken[end]] for end, faces in enumerate((one, other))]
    for version in (4, 6):
        local = [[face for face in faces if face.ip.is_link_local and face.ip.version == version] for faces in left]
        guesses = [pair for pair in itertools.product(*local) if pair[0].address != pair[1].address]
        pairs += [(mine, theirs) for mine, theirs in guesses[:_MAX_GUESSES]]
    return tuple(pairs)


def _routable(faces: Sequence[Interface], version: int) -> list[Interface]:
    return [face for face in faces if face.ip.version == version and not face.ip.is_link_local]


def _natural(name: str) -> list[tuple[int, str]]:
    """eth2 before eth10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
