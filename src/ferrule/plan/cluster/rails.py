"""Rails between live machines: as they were measured, or what an interface's speed lets one guess. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from ferrule.fabric.join.addresses import Interface, pairings
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.known_links import KnownLinks, link_ends
from ferrule.fabric.routing.paths import Rail
from ferrule.links import MeasuredLink, MeasuredLinks, MeasuredPair
from ferrule.plan.cluster.profile import HOST_SECONDS
from ferrule.plan.cluster.spec import RailSpec
from ferrule.units import format_rate

GUESSED_DELAY = 15e-6
"""Of an interface of which only the speed is known: cables of 1 to 10 Gigabit Ethernet take 10 to 25 us."""
GUESSED_SPEED = 1e9
"""Bits per second of an interface that does not tell."""
GOODPUT = 0.94
"""Part of Ethernet's speed that TCP gets with frames of 1500 bytes: (1500 - 52) / (1500 + 38)."""
_OLD_SECONDS = 30 * 86400.0


class Found(NamedTuple):
    """``rails`` between two machines, none where nothing joins them; ``notes``: what is not certain about them."""

    rails: tuple[RailSpec, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sources:
    """Sources of what is known of links on this machine. ``now``: in seconds since 1970."""

    probed: MeasuredLinks
    calibrated: KnownLinks
    now: float

    @classmethod
    def of_this_machine(cls) -> Sources:
        return cls(MeasuredLinks(), KnownLinks(), time.time())

    def between(self, one: RankHost, other: RankHost) -> Found:
        """The rails between two machines: those that `ferrule links probe` measured; else those that the fabric did
        when ranks last met; else a guess by the speed of their interfaces."""
        where = f"{one.host}-{other.host}"
        pair = self.probed.find(one.host, other.host)
        if pair is not None:
            found = rails_of_pair(pair, self.now)
            if found.rails or pair.links:
                return found
        rails: list[RailSpec] = []
        notes: list[str] = []
        for mine, theirs in pairings(one.interfaces, other.interfaces):
            rail = Rail(0, (theirs.address, 0), mine.address, mine.name, theirs.name)
            known = self.calibrated.find(link_ends(one, other, rail, higher=False))
            if known is not None:
                rails.append(_calibrated(mine.name, known))
            elif not (mine.ip.is_link_local and theirs.ip.is_link_local):
                # Which link-local addresses belong together cannot be told.
                rails.append(guessed_rail(mine, theirs))
                notes.append(
                    f"{where}: latency and bandwidth of {mine.name} are guessed from its speed, "
                    f"{format_rate(_speed(mine, theirs))}; measure them: ferrule links probe {other.host}"
                )
        if not rails:
            notes.append(
                f"{where}: no cable is known; if there is one, give its ends addresses on one subnet, "
                f"or measure it: ferrule links probe {other.host}"
            )
        return Found(tuple(rails), tuple(notes))


def rails_of_pair(pair: MeasuredPair, now: float) -> Found:
    """A rail for each link that was measured and is well. Its latency is the median of the smallest message. Its
    bandwidth is what both ways get at once, if that is less than one way alone, since collectives load both; where all
    links at once got less than their sum, each is less by that."""
    where = "-".join(pair.hosts)
    rails: list[RailSpec] = []
    notes: list[str] = []
    one_way = 0.0
    for link in pair.links:
        rate = _rate(link)
        if link.fault or not link.latency or not rate:
            notes.append(
                f"{where}: {link.ends[0].interface} is left out: {link.detail or link.fault or 'not measured'}"
            )
            continue
        smallest = min(link.latency, key=lambda one: one.size)
        rails.append(RailSpec(link.ends[0].interface or "link", smallest.median, rate / 8, link.transport))
        one_way += min(link.forth, link.back)
    if pair.together is not None and len(rails) > 1 and one_way > 0:
        part = min(pair.together.forth, pair.together.back) / one_way
        if 0 < part < 1:
            rails = [replace(rail, bandwidth=rail.bandwidth * part) for rail in rails]
    days = (now - pair.at) / 86400
    if rails and now - pair.at > _OLD_SECONDS:
        notes.append(
            f"{where}: its links were measured {days:.0f} days ago; again: ferrule links probe {pair.hosts[1]}"
        )
    return Found(tuple(rails), tuple(notes))


def guessed_rail(mine: Interface, theirs: Interface) -> RailSpec:
    return RailSpec(mine.name, GUESSED_DELAY + HOST_SECONDS["tcp"], _speed(mine, theirs) * GOODPUT / 8)


def _speed(mine: Interface, theirs: Interface) -> float:
    """Bits per second of the slower end that tells."""
    return min((end.speed * 1e6 for end in (mine, theirs) if end.speed > 0), default=GUESSED_SPEED)


def _calibrated(name: str, known: Measured) -> RailSpec:
    return RailSpec(name, known.alpha, 1 / max(known.up, known.down))


def _rate(link: MeasuredLink) -> float:
    """Bits per second that each way gets; 0 if that is not known."""
    both = min(link.both)
    rates = [rate for rate in (link.forth, link.back) if rate > 0]
    return min([*rates, *([both] if both > 0 else [])], default=0.0)
