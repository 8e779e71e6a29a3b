"""Findings on a link from its measured numbers. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal, get_args

from ferrule.links.doctor.costs import MESSAGE_BYTES, MESSAGES_PER_TOKEN
from ferrule.links.doctor.cures import by_hand
from ferrule.links.findings import SEVERITIES, Finding, Severity
from ferrule.links.measured.store import Bandwidth, MeasuredLink, MeasuredPair
from ferrule.links.types.inventory import Evidence
from ferrule.units import format_rate, format_seconds

LATENCY_NOTE, LATENCY_WARNING = 60e-6, 150e-6
"""Seconds one way for a message of tensor parallelism (see `costs`): 10 and 24 ms of waiting for each token."""

COLLAPSED_SUM, COLLAPSED_SHARE, SHARED_SUM = 0.9, 0.3, 1.4
"""Both ways together in parts of one way: below the first it collapses, as where either direction gets less than the
second of what it gets alone; below the third the directions share the cable. A good cable has 2 (and TCP's own
acknowledgements take a little), half duplex 1. Where the processors were the limit the directions share those, which
gives 1 or more, too: only less than the first is the cable's fault then."""

UNEQUAL = 0.5
"""Below such a part of the other direction one is slow."""

SLOW, SLOW_THUNDERBOLT = 0.6, 0.2
"""Below such a part of the trained speed a link is slow. Over USB4 and Thunderbolt the network driver carries far less
than the cable: 9 to 20 of 40 Gb/s are usual."""

_BUSY = 0.9
"""From such a part on the processors are the limit. Directions that share an emulated cable leave half of two cores
idle, a good one of 10 Gb/s takes 0.95 of them."""

Verdict = Literal["", "limited", "shared", "collapse"]
"""Verdict on both directions at once, the worst last; ``limited``: by the processors, so the cable is not known."""

_AT_ONCE: dict[Verdict, tuple[str, Severity, str, str, str]] = {
    "collapse": (
        "probe-collapse",
        "error",
        "Under load in both directions the link collapses",
        "An all-reduce sends both ways at once, so collectives get only this.",
        "Replug both ends. With thunderbolt-net try a newer kernel and another socket, and one cable per controller; "
        "on Ethernet look for half duplex: ethtool INTERFACE.",
    ),
    "shared": (
        "probe-shared",
        "warning",
        "Both directions share the link",
        "An all-reduce sends both ways at once and takes longer than it would, up to twice as long.",
        "Look for half duplex (ethtool INTERFACE), a PCIe link that is too narrow (ferrule links show), or another "
        "program that uses the link.",
    ),
    "limited": (
        "probe-limited",
        "note",
        "The processors were the limit under load in both directions",
        "The link itself may do better; programs that move as much as this will meet the same limit.",
        "End what else uses the processors and measure again.",
    ),
}
"""The finding of each verdict: its id, severity, and what, why and cure in words."""

_WHERE = "ferrule links probe"


def examine(pair: MeasuredPair, earlier: MeasuredPair | None = None) -> tuple[Finding, ...]:
    """All findings on the links between two hosts; ``earlier``: what was measured between them before."""
    found: list[Finding] = []
    if not pair.links:
        found.append(_no_link(pair))
    for link in pair.links:
        if link.fault:
            found.append(_fault(link))
        found += _one_way(link)
        found += _both_ways(link)
        found += _speed(link, None if earlier is None else earlier.link(link))
        if link == _quickest(pair, link):
            found += _latency(link)
    found = [dataclasses.replace(one, hosts=pair.hosts) for one in found]
    return tuple(sorted(found, key=lambda one: -SEVERITIES.index(one.severity)))


def _quickest(pair: MeasuredPair, link: MeasuredLink) -> MeasuredLink:
    """Of the transports over this link, that with the least latency for a message of tensor parallelism."""
    ends = [(end.host, end.interface) for end in link.ends]
    alike = [one for one in pair.links if [(end.host, end.interface) for end in one.ends] == ends]
    return min(alike, key=lambda one: one.latency_of(MESSAGE_BYTES) or math.inf)


def _no_link(pair: MeasuredPair) -> Finding:
    return Finding(
        "probe-no-link",
        "error",
        " ↔ ".join(pair.hosts),
        "No two interfaces of these hosts are up and on one subnet, so there is nothing to measure.",
        why="Whatever goes between them takes another way, through a router, or none.",
        cure=by_hand("Look at `ferrule links show` on both; give the two ends of each cable addresses in one subnet."),
    )


def _fault(link: MeasuredLink) -> Finding:
    first, second = (f"{end.host} ({end.interface})" for end in link.ends)
    what, why, cure = {
        "stall": (
            "The link is up, and nothing arrives at either end.",
            "Programs that choose this link wait until they give up.",
            "Replug both ends of the cable. If that is no cure: load the driver anew on both hosts, then try another "
            "cable. If the interfaces are not on one cable at all, give them different subnets.",
        ),
        "one-way": (
            "Frames pass in one direction only.",
            "Nothing that needs an answer works, although the link is up at both ends.",
            "Replug both ends of the cable, as one of its lanes is dead; if that is no cure, try another cable.",
        ),
        "blocked": (
            f"Frames arrive both at {first} and at {second}, but no connection comes about.",
            "A firewall drops what Ferrule sends.",
            "Allow TCP on this interface on both hosts, for example with firewalld: "
            "sudo firewall-cmd --zone=trusted --change-interface=INTERFACE",
        ),
        "large": (
            "Small messages pass, and large ones get stuck.",
            "Connections open and then hang at the first large message.",
            "Give both ends of the cable the same MTU; if they have, replug both ends or try another cable.",
        ),
        "no-rdma": (
            "Both ends have RDMA on this link, and no queue pair works over it; TCP does.",
            "Small messages take several times as long over TCP.",
            "Look for RDMA findings of `ferrule doctor` on both hosts: GIDs of one subnet, a subnet manager.",
        ),
    }[link.fault or "stall"]
    evidence = ((_WHERE, link.detail),) if link.detail else ()
    severity: Severity = "warning" if link.fault == "no-rdma" else "error"
    return Finding(f"probe-{link.fault}", severity, link.name, what, evidence, why, by_hand(cure))


def _one_way(link: MeasuredLink) -> Iterator[Finding]:
    """One way is much slower than the other although the cable is the same in both."""
    forth, back = link.forth, link.back
    if link.fault or min(forth, back) >= UNEQUAL * max(forth, back) or _trained_unequally(link):
        return
    yield Finding(
        "probe-asymmetric",
        "warning",
        link.name,
        "One direction is much slower than the other.",
        (_line(link, "one way", forth, back),),
        "Collectives need both directions, so the slow one counts.",
        by_hand("Replug both ends of the cable; if that is no cure, turn it round or try another."),
    )


def both_ways(one: Bandwidth) -> Verdict:
    """Verdict on both directions at once from the rates with one number of streams."""
    if not one.forth or not one.back:
        return ""
    busy = one.busy > _BUSY
    starved = min(one.both_forth / one.forth, one.both_back / one.back) < COLLAPSED_SHARE
    if one.together < COLLAPSED_SUM or (starved and not busy):
        return "collapse"
    if one.together < SHARED_SUM or starved:
        return "limited" if busy else "shared"
    return ""


def _both_ways(link: MeasuredLink) -> Iterator[Finding]:
    """Both directions suffer from being used at the same time. The worst number of streams counts: who uses the link
    does not know the best one."""
    if not link.bandwidth:
        return
    one = max(link.bandwidth, key=lambda one: (get_args(Verdict).index(both_ways(one)), -one.together))
    verdict = both_ways(one)
    streams = f"{one.streams} stream{'s' if one.streams > 1 else ''}"
    lines: tuple[Evidence, ...] = (
        _line(link, f"one way, {streams}", one.forth, one.back),
        _line(link, f"both ways at once, {streams}", one.both_forth, one.both_back),
    )
    if verdict == "limited":
        lines = (*lines, (_WHERE, f"processors in use meanwhile: {one.busy:.0%}"))
    if verdict:
        finding, severity, what, why, cure = _AT_ONCE[verdict]
        gets = f"together they get {one.together:.2f} times what one direction gets alone, where a good cable has 2"
        yield Finding(finding, severity, link.name, f"{what}: {gets}.", lines, why, by_hand(cure))


def _trained_unequally(link: MeasuredLink) -> bool:
    speeds = [end.speed for end in link.ends]
    return None not in speeds and speeds[0] != speeds[1]


def _speed(link: MeasuredLink, earlier: MeasuredLink | None) -> Iterator[Finding]:
    rates = [link.forth * link.framing, link.back * link.framing]
    if not any(rates):
        return
    for end, rate in zip(link.ends, rates, strict=True):
        part = SLOW_THUNDERBOLT if end.kind == "thunderbolt" else SLOW
        if end.speed is not None and rate < part * end.speed:
            yield _slow(
                link, f"From {end.host} it carries {format_rate(rate)}, and trained at {format_rate(end.speed)}."
            )
            return
    if earlier is not None and (link.forth < SLOW * earlier.forth or link.back < SLOW * earlier.back):
        yield Finding(
            "probe-slower",
            "warning",
            link.name,
            "It is much slower than when it was measured before.",
            (
                _line(link, "now", link.forth, link.back),
                _line(earlier, "before", earlier.forth, earlier.back),
            ),
            "Cables that train anew sometimes come up at half their speed.",
            by_hand("Replug BOTH ends of the cable, then measure again; compare kernels if one was updated."),
        )


def _slow(link: MeasuredLink, what: str) -> Finding:
    """Findings on slow links. Where the processors were busy, they may be the cause: the cable is not blamed."""
    busy = max((one.busy for one in link.bandwidth), default=0.0)
    lines: tuple[Evidence, ...] = (_line(link, "one way", link.forth, link.back),)
    why = "Large messages, as in prompts and fine-tuning, take that much longer."
    if busy > _BUSY:
        lines = (*lines, (_WHERE, f"processors in use meanwhile: {busy:.0%}"))
        cure = "End what else uses the processors and measure again: they were busy, so the cable may be well."
        return Finding("probe-slow", "note", link.name, what, lines, why, by_hand(cure))
    cure = (
        "Replug both ends, and look for a PCIe link that is too narrow (ferrule links show); "
        "end what else uses the link."
    )
    return Finding("probe-slow", "warning", link.name, what, lines, why, by_hand(cure))


def _latency(link: MeasuredLink) -> Iterator[Finding]:
    latency = link.latency_of(MESSAGE_BYTES)
    if latency is None or latency < LATENCY_NOTE:
        return
    wait = MESSAGES_PER_TOKEN * latency
    severity: Severity = "warning" if latency >= LATENCY_WARNING else "note"
    yield Finding(
        "probe-latency",
        severity,
        link.name,
        "Its latency is too high for tensor parallelism." if severity == "warning" else "Its latency is felt.",
        ((_WHERE, f"{MESSAGE_BYTES // 1024} KiB take {format_seconds(latency)} one way"),),
        f"A 70B model exchanges {MESSAGES_PER_TOKEN} such messages for each token: {format_seconds(wait)} of waiting, "
        f"so it stays below {1 / wait:.2g} tokens/s however fast the hosts are (estimated; more with smaller models).",
        by_hand("Use RDMA over this cable if both ends have it, or split the model by layers: --pp instead of --tp."),
    )


def _line(link: MeasuredLink, what: str, forth: float, back: float) -> Evidence:
    first, second = (end.host for end in link.ends)
    return (_WHERE, f"{what}: {first} to {second} {format_rate(forth)}, {second} to {first} {format_rate(back)}")
