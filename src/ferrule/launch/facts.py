"""Host facts for a launcher before ranks start there: versions, addresses, and where cables lead."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.process import boot_id, usable_cores

if TYPE_CHECKING:
    from ferrule.links import Inventory

_MAPPED = "::ffff:"


@dataclass(frozen=True)
class Face:
    """An address of a network interface that is up. ``kind`` as `ferrule.links` has it; ``speed`` in Mbit/s, of a
    Thunderbolt cable if the interface tells none; 0 when unknown."""

    name: str
    address: str
    prefix: int
    kind: str = "ethernet"
    speed: int = 0

    def shares_subnet(self, other: Face) -> bool:
        """Whether each believes that the other is on its own subnet; never for link-local addresses, which tell
        nothing."""
        one, two = ipaddress.ip_address(self.address), ipaddress.ip_address(other.address)
        if one.version != two.version or one.is_link_local or one == two:
            return False
        return two in _network(self) and one in _network(other)


@dataclass(frozen=True)
class RdmaFace:
    """An active port of an RDMA device. ``netdevs``: its interfaces; ``layer``: ``Ethernet`` or ``InfiniBand``."""

    device: str
    port: int
    netdevs: tuple[str, ...] = ()
    layer: str = ""
    software: bool = False


@dataclass(frozen=True)
class HostFacts:
    """A host of a job.

    ``machine``: equal for two names of one host. ``client`` and ``server``: the two ends of the connection that ssh
    made, empty on the launcher's own. ``thunderbolt``: the identities that it has for others; ``cables``: for each
    peer's identity the interfaces that lead there.
    """

    name: str
    machine: str
    cores: int
    loopback: str = "lo"
    versions: tuple[tuple[str, str], ...] = ()
    client: str = ""
    server: str = ""
    faces: tuple[Face, ...] = ()
    rdma: tuple[RdmaFace, ...] = ()
    thunderbolt: tuple[str, ...] = ()
    cables: tuple[tuple[str, tuple[str, ...]], ...] = ()


def own_facts(environ: Mapping[str, str], *, links: bool, ends: tuple[str, str] | None = None) -> HostFacts:
    """This host, where ``environ`` is that of its ranks. ``links``: also versions, interfaces and cables, which takes
    some tenths of a second. ``ends``: of the connection to the launcher; None: as ssh tells."""
    emulated = environ.get("FERRULE_HOST_ID", "")
    words = os.environ.get("SSH_CONNECTION", "").split()
    client, server = ends or ((words[0], words[2]) if len(words) == 4 else ("", ""))
    found = HostFacts(
        name=emulated or socket.gethostname(),
        machine=f"{emulated} {_machine()}",
        cores=usable_cores(),
        loopback="lo" if sys.platform == "linux" else "lo0",
        client=_unmapped(client),
        server=_unmapped(server),
    )
    if not links:
        return found
    from ferrule.links import Probe  # a job on one machine need not wait for it

    return with_links(found, Probe.live().inventory(devices=False))


def address_toward(address: str) -> str:
    """This machine's address on the way there. Raises `OSError` where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        return str(probe.getsockname()[0])


def with_links(found: HostFacts, inventory: Inventory) -> HostFacts:
    """``found``, and what the inventory tells of cables; pure."""
    hosts = [domain.host for domain in inventory.thunderbolt if domain.host is not None]
    return replace(
        found,
        versions=inventory.machine.software,
        faces=tuple(_faces(inventory)),
        rdma=tuple(_ports(inventory)),
        thunderbolt=tuple(host.identity for host in hosts if host.identity),
        cables=tuple((peer.identity, peer.netdevs) for peer in inventory.peers if peer.identity),
    )


def _faces(inventory: Inventory) -> Iterator[Face]:
    """Those that the fabric would use, too."""
    from ferrule.fabric.join.addresses import Interface, usable

    cables = {name: int((peer.tx_gb_s or 0) * 1000) for peer in inventory.peers for name in peer.netdevs}
    up = [device for device in inventory.netdevs if device.enabled is not False and device.carrier is not False]
    listed = [
        Interface(device.name, address.address, address.prefix)
        for device in up
        if device.kind != "loopback"
        for address in device.addresses
    ]
    for one in usable(listed):
        device = inventory.netdev(one.name)
        if device is not None:
            speed = device.speed_mbps or cables.get(one.name, 0)
            yield Face(one.name, one.address, one.prefix, device.kind, speed)


def _ports(inventory: Inventory) -> Iterator[RdmaFace]:
    for device in inventory.rdma:
        for port in device.ports:
            if port.state in (None, "ACTIVE"):
                yield RdmaFace(device.name, port.number, port.netdevs, port.link_layer or "", device.software)


def _network(face: Face) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network((face.address, face.prefix), strict=False)


def _unmapped(address: str) -> str:
    return address.partition("%")[0].removeprefix(_MAPPED)


def _machine() -> str:
    """The boot of this machine and, where it has such, the network namespace: containers are hosts of their own."""
    namespace = Path("/proc/self/ns/net")
    return f"{boot_id()} {namespace.stat().st_ino}" if namespace.exists() else boot_id()
