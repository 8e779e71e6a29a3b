"""Several hosts side by side: both ends of a cable, subnets, versions, subnet managers."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ferrule.links.doctor import mac, skew
from ferrule.links.doctor.cures import by_hand, set_mtu
from ferrule.links.doctor.netdev import CABLES, addresses_evidence, subnets, usable
from ferrule.links.doctor.thunderbolt import called
from ferrule.links.findings import Finding
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.net import NetDevice
from ferrule.links.types.thunderbolt import ThunderboltDomain, ThunderboltPeer

_CLOCK_SECONDS = 1.0
_SPEED_IDS = ("cable-asymmetric", "cable-half-speed", "cable-one-lane")


@dataclass(frozen=True)
class End:
    """One end of a cable: a host, its socket, and whom it sees there."""

    inventory: Inventory
    domain: ThunderboltDomain
    peer: ThunderboltPeer

    @property
    def name(self) -> str:
        return self.inventory.host

    @property
    def netdev(self) -> NetDevice | None:
        return self.inventory.netdev(self.peer.netdevs[0]) if self.peer.netdevs else None

    @property
    def subject(self) -> str:
        return called(self.domain, self.peer)


def cables(inventories: Sequence[Inventory]) -> list[tuple[End, End]]:
    """Those of which both ends are among these hosts. A host's identity is that of the controller of the cable."""
    ends = [End(one, domain, peer) for one in inventories for domain in one.thunderbolt for peer in domain.peers]
    found = []
    for one, other in itertools.combinations(ends, 2):
        mine, theirs = one.domain.host, other.domain.host
        if mine is None or theirs is None or None in (mine.identity, theirs.identity):
            continue
        if one.peer.identity == theirs.identity and other.peer.identity == mine.identity:
            found.append((one, other))
    return found


def check(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    pairs = cables(inventories)
    for one, other in pairs:
        yield from _subnets_differ(one, other)
        yield from _mtu_differs(one, other)
        yield from _far_forbidden(one, other)
    yield from _same_address(inventories)
    yield from _managers(inventories)
    yield from skew.check(inventories)
    yield from _clocks(inventories)
    for left, right in itertools.combinations(inventories, 2):
        yield from _no_common_subnet(left, right)


def merged(findings: Iterable[Finding], inventories: Sequence[Inventory]) -> list[Finding]:
    """Merge both ends' findings on one cable into one; and where the other end is the cause, only that stays."""
    found = list(findings)
    for one, other in cables(inventories):
        mine, theirs = (_of(found, end, _SPEED_IDS) for end in (one, other))
        if mine is not None and theirs is not None:
            found.remove(theirs)
            found[found.index(mine)] = dataclasses.replace(
                mine,
                subject=" ↔ ".join(f"{end.name} {end.subject.partition(' →')[0]}" for end in (one, other)),
                what=f"{mine.what.removesuffix('.')} (seen from {one.name}).",
                evidence=tuple(
                    (f"{end.name} {where}", line)
                    for end, side in ((one, mine), (other, theirs))
                    for where, line in side.evidence
                ),
                hosts=(one.name, other.name),
            )
        for near, far in ((one, other), (other, one)):
            told = _of(found, near, ("rdma-port-down",))
            if told is not None and _of(found, far, ("mac-forbidden-port",)) is not None:
                found.remove(told)
    return found


def _of(findings: list[Finding], end: End, ids: tuple[str, ...]) -> Finding | None:
    wanted = (one for one in findings if one.id in ids and one.hosts == (end.name,) and one.subject == end.subject)
    return next(wanted, None)


def _pair(one: End, other: End) -> str:
    names = [f"{end.name} {end.netdev.name if end.netdev else end.subject}" for end in (one, other)]
    return " ↔ ".join(names)


def _subnets_differ(one: End, other: End) -> Iterator[Finding]:
    near, far = one.netdev, other.netdev
    if near is None or far is None or not subnets(near) or not subnets(far):
        return
    if any(net.version == there.version and net.overlaps(there) for net in subnets(near) for there in subnets(far)):
        return
    evidence = addresses_evidence(one.inventory, near.name) + addresses_evidence(other.inventory, far.name)
    what = "The two ends of this cable have addresses in different subnets, so nothing goes over it."
    why = "Traffic takes another way, such as a slower network or Wi-Fi, without a word."
    net = subnets(near)[0]
    cure = by_hand(f"Give {far.name} on {other.name} an address in {net}.")
    yield Finding("subnets-differ", "error", _pair(one, other), what, evidence, why, cure, (one.name, other.name))


def _mtu_differs(one: End, other: End) -> Iterator[Finding]:
    near, far = one.netdev, other.netdev
    if near is None or far is None or near.mtu is None or far.mtu is None or near.mtu == far.mtu:
        return
    small, large = sorted((one, other), key=lambda end: end.netdev.mtu if end.netdev and end.netdev.mtu else 0)
    if small.netdev is None or large.netdev is None:
        return
    what = f"The ends of this cable have different MTUs: {near.mtu} and {far.mtu}."
    why = (
        "TCP settles on the smaller one, so the larger is of no use. Large frames of RoCE and large datagrams are "
        "dropped by the smaller end, and a program that waits for them hangs."
    )
    evidence = one.inventory.evidence(f"{near.path}/mtu") + other.inventory.evidence(f"{far.path}/mtu")
    cure = set_mtu(small.inventory, small.netdev.name, large.netdev.mtu or 0)
    cure = tuple(dataclasses.replace(each, text=f"On {small.name}: set the larger one.") for each in cure)
    yield Finding("mtu-differs", "warning", _pair(one, other), what, evidence, why, cure, (one.name, other.name))


def _far_forbidden(one: End, other: End) -> Iterator[Finding]:
    """Told by the end that is in the wrong socket, unless its record says nothing of RDMA."""
    for near, far in ((one, other), (other, one)):
        down = mac.rdma_port(near.inventory, near.peer.netdevs)
        if down is None or down.state == "ACTIVE" or not mac.is_forbidden(far.inventory, far.domain):
            continue
        if mac.rdma_port(far.inventory, far.peer.netdevs) is None:
            what = f"RDMA is {down.state} because the other end, on {far.name}, is in the socket beside Ethernet."
            cure = by_hand(f"Move that end to another socket of {far.name}.")
            evidence = near.inventory.evidence(down.path)
            yield Finding(
                "mac-forbidden-port", "error", _pair(near, far), what, evidence, "", cure, (near.name, far.name)
            )


def _same_address(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    owners: dict[str, list[tuple[Inventory, str]]] = collections.defaultdict(list)
    for one in inventories:
        for device in one.netdevs:
            if device.kind in (*CABLES, "wifi", "bridge", "bond"):
                for address in device.addresses:
                    if address.scope not in ("link", "host"):
                        owners[address.address].append((one, device.name))
    for text, who in owners.items():
        hosts = tuple(dict.fromkeys(one.host for one, _ in who))
        if len(hosts) < 2 or text.startswith("fe80:"):
            continue
        what = f"{text} is the address of {len(hosts)} hosts: {', '.join(hosts)}."
        why = "Connections go to one or the other, and break."
        evidence = tuple(line for one, name in who for line in addresses_evidence(one, name))
        yield Finding("same-address", "error", text, what, evidence, why, by_hand("Give each host its own."), hosts)


def _managers(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    running = [one for one in inventories if any(s.active for s in one.services if s.name in ("opensm", "opensmd"))]
    if len(running) < 2:
        return
    hosts = tuple(one.host for one in running)
    what = f"opensm runs on {len(running)} hosts: {', '.join(hosts)}."
    why = "Only one is in charge. When it restarts they change places, and every connection waits meanwhile."
    evidence = tuple(("$ systemctl is-active opensm", f"active on {host}") for host in hosts)
    cure = by_hand(f"Keep it on {hosts[0]}; on the others: sudo systemctl disable --now opensm")
    yield Finding("two-subnet-managers", "note", "opensm", what, evidence, why, cure, hosts)


def _clocks(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    offsets = [
        (one.host, clock.offset_seconds)
        for one in inventories
        if (clock := one.machine.clock) is not None and clock.offset_seconds is not None
    ]
    if len(offsets) < 2:
        return
    low, high = (pick(offsets, key=lambda pair: pair[1]) for pick in (min, max))
    if high[1] - low[1] <= _CLOCK_SECONDS:
        return
    what = f"The clocks of {low[0]} and {high[0]} differ by {high[1] - low[1]:.3g} s."
    evidence = tuple((f"$ chronyc -c tracking ({host})", f"{offset:g} s") for host, offset in (low, high))
    why = "Logs cannot be compared, and what is signed with a time may be refused."
    cure = by_hand("Let all hosts follow the same time server: sudo timedatectl set-ntp true")
    yield Finding("clock-skew", "warning", "clocks", what, evidence, why, cure, (low[0], high[0]))


def _no_common_subnet(left: Inventory, right: Inventory) -> Iterator[Finding]:
    """No subnet in common at all; with a router between them they may still talk, but not fast."""
    ours, theirs = (
        [net for device in one.netdevs if device.kind != "loopback" and usable(device) for net in subnets(device)]
        for one in (left, right)
    )
    if not ours or not theirs or any(a.version == b.version and a.overlaps(b) for a in ours for b in theirs):
        return
    hosts = (left.host, right.host)
    what = f"{hosts[0]} and {hosts[1]} have no subnet in common: " + ", ".join(
        dict.fromkeys(map(str, [*ours, *theirs]))
    )
    why = "What they send each other goes through a router, if it arrives at all."
    cure = by_hand("Join them by a cable, and give both ends addresses in one subnet.")
    yield Finding("no-common-subnet", "warning", " ↔ ".join(hosts), what + ".", (), why, cure, hosts)
