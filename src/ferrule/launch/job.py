"""A job: which ranks run on which hosts, by which addresses they meet, and what runs; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferrule.errors import ConfigError
from ferrule.launch.facts import Face, HostFacts
from ferrule.launch.hostfile import HostEntry

MEETING_PORTS = 4
"""On rank 0's host: of the fabric, torch's store, MLX's JACCL and MLX's NCCL. Every host has one per rank besides."""

LOOPBACK = "127.0.0.1"
_SLOWEST = ("wifi", "virtual", "bridge")


@dataclass(frozen=True)
class Site:
    """A host that takes part. ``address``: by which the others reach it; ``ports``: those that it keeps free."""

    entry: HostEntry
    facts: HostFacts
    address: str
    ranks: tuple[int, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """``key``: of the cluster. ``sites``: that of rank 0 first, ranks in ascending order."""

    sites: tuple[Site, ...]
    key: str = field(repr=False)

    @property
    def size(self) -> int:
        return sum(len(site.ranks) for site in self.sites)

    def site(self, rank: int) -> Site:
        return next(site for site in self.sites if rank in site.ranks)

    @property
    def alone(self) -> bool:
        """Whether all ranks are on one host."""
        return len(self.sites) == 1


def share_out(entries: Sequence[HostEntry], ranks: int | None) -> list[tuple[int, ...]]:
    """Ranks of each host: its slots are filled before those of the next one. ``ranks``: None for all slots.

    Raises `ConfigError` where there are not enough slots."""
    slots = sum(entry.slots for entry in entries)
    wanted = slots if ranks is None else ranks
    if not 1 <= wanted <= slots:
        names = ",".join(f"{entry.name}:{entry.slots}" for entry in entries)
        each = -(-wanted // len(entries))
        raise ConfigError(
            f"{wanted} ranks do not fit on the {slots} slots of {names}; give the hosts more: "
            f"{entries[0].name}:{each}, or slots = {each} in the hostfile"
        )
    found = []
    first = 0
    for entry in entries:
        last = min(first + entry.slots, wanted)
        found.append(tuple(range(first, last)))
        first = last
    return found


def find_addresses(entries: Sequence[HostEntry], facts: Sequence[HostFacts], own: Sequence[str]) -> list[str]:
    """By which address the others reach each host: the one it was given, or the one that ssh took, where IPv4 is
    preferred to IPv6 of the same interface. ``own[i]``: that of a host that ssh did not go to, as far as is known.

    Raises `ConfigError` where none is known. Two names of one machine are an error, too.
    """
    if len(entries) == 1:
        return [LOOPBACK]
    seen: dict[str, str] = {}
    for entry, fact in zip(entries, facts, strict=True):
        twin = seen.setdefault(fact.machine, entry.name)
        if twin != entry.name:
            raise ConfigError(f"{twin} and {entry.name} are the same machine; name it once, with slots=2")
    found = []
    clients = [fact.client for fact in facts if fact.client]
    for entry, fact, guess in zip(entries, facts, own, strict=True):
        if entry.addresses:
            found.append(entry.addresses[0])
            continue
        mine = {face.address for face in fact.faces}
        told = fact.server or next((client for client in clients if client in mine), guess)
        if not told or ipaddress.ip_address(told).is_loopback:
            raise ConfigError(
                f"by which address the other hosts reach {entry.name} is not known; write it into the hostfile: "
                f'address = "10.0.0.1"'
            )
        found.append(_ipv4_beside(told, fact.faces))
    return found


def _ipv4_beside(address: str, faces: Sequence[Face]) -> str:
    if ":" not in address:
        return address
    name = next((face.name for face in faces if face.address == address), "")
    return next((face.address for face in faces if face.name == name and ":" not in face.address), address)


def common_faces(sites: Sequence[Site]) -> list[tuple[Face, ...]]:
    """Networks on which all hosts are: for each one an interface per host, the quickest first, and none that is slower
    than half of that."""
    found = []
    for face in sorted(sites[0].facts.faces, key=_slowness):
        others = [next((one for one in site.facts.faces if face.shares_subnet(one)), None) for site in sites[1:]]
        row = [one for one in others if one is not None]
        if len(row) == len(others):
            found.append((face, *row))
    return [row for row in found if _keeps_up(row[0], found[0][0])]


def with_ports(job: Job, first: int) -> Job:
    """The same job with the ports from ``first``, which is torch's, instead of those that its hosts keep free."""
    sites: list[Site] = []
    for site in job.sites:
        ports = list(range(first, first + len(site.ranks) + (0 if sites else MEETING_PORTS)))
        first += len(ports)
        if not sites:
            ports[:2] = ports[1::-1]
        sites.append(replace(site, ports=tuple(ports)))
    return replace(job, sites=tuple(sites))


def faces_toward(site: Site, other: Site) -> list[Face]:
    """The interfaces of ``site`` that are on a network with ``other``, the quickest first."""
    found = (face for face in site.facts.faces if any(face.shares_subnet(one) for one in other.facts.faces))
    return sorted(found, key=_slowness)


def meeting_addresses(job: Job, site: Site) -> list[str]:
    """The addresses of rank 0's host for ``site``, the best first: the one that the hostfile gives, and nothing else;
    or the usual one, if ``site`` is on a network with it or with no other of them, and then those of all cables."""
    first = job.sites[0]
    if site is first or first.entry.addresses:
        return [first.address]
    direct = [face.address for face in faces_toward(first, site) if face.address.count(":") == first.address.count(":")]
    usual = [first.address] if first.address in direct or not direct else []
    return list(dict.fromkeys([*usual, *direct, first.address]))


def joined_by(site: Site, other: Site) -> set[str]:
    """The names of the interfaces of ``site`` that lead to ``other``, also of cables without addresses."""
    cables = {name for peer, names in site.facts.cables if peer in other.facts.thunderbolt for name in names}
    return cables | {face.name for face in faces_toward(site, other)}


def quickest(faces: Sequence[Face]) -> list[Face]:
    """Of ``faces``, the quickest first, those that are at least half as quick as the first."""
    return [face for face in faces if _keeps_up(face, faces[0])]


def _keeps_up(face: Face, best: Face) -> bool:
    return 2 * face.speed >= best.speed and (face.kind in _SLOWEST) == (best.kind in _SLOWEST)


def _slowness(face: Face) -> tuple[bool, int, int]:
    return (face.kind in _SLOWEST, -face.speed, ipaddress.ip_address(face.address).version)


def version_skew(names: Sequence[str], facts: Sequence[HostFacts]) -> list[str]:
    """In words, which versions differ between hosts: of Ferrule, Python, torch and the like."""
    tables: list[Mapping[str, str]] = [dict(fact.versions) for fact in facts]
    programs = dict.fromkeys(name for table in tables for name in table)
    lines = []
    for program in programs:
        there = {name: table[program] for name, table in zip(names, tables, strict=True) if program in table}
        if len(set(there.values())) > 1:
            lines.append(f"{program} differs: " + ", ".join(f"{version} on {name}" for name, version in there.items()))
    return lines
