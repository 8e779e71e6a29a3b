"""The same cluster with one thing more: a host, a cable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, count

from ferrule.plan.cluster.spec import ClusterSpec, LinkSpec, RailSpec

NEW_RAIL = RailSpec("10 Gigabit Ethernet", 22e-6, 9.4e9 / 8)
"""For hosts that have no cable yet: figures of ethernet-10g."""


def one_more(cluster: ClusterSpec, like: str) -> ClusterSpec:
    """One more device ``like`` another, with the same cables, and between the two the best that either has."""
    stem, dash, digits = like.rpartition("-")
    stem = stem if dash and digits.isdecimal() else like
    name = next(name for number in count(2) if (name := f"{stem}-{number}") not in cluster.by_name)
    own = [link for link in cluster.links if like in link.between]
    links = [LinkSpec((name, next(end for end in link.between if end != like)), link.rails) for link in own]
    rails = min(own, key=lambda link: (link.alpha, -link.bandwidth)).rails if own else (NEW_RAIL,)
    links.append(LinkSpec((like, name), rails))
    device = replace(cluster.by_name[like], name=name)
    return replace(cluster, devices=(*cluster.devices, device), links=(*cluster.links, *links))


def joined(cluster: ClusterSpec) -> ClusterSpec | None:
    """With a new rail to every device that has no cable at all; None where each has one."""
    lonely = {device.name for device in cluster.devices} - {end for link in cluster.links for end in link.between}
    if not lonely or len(cluster.devices) == 1:
        return None
    pairs = combinations(cluster.by_name, 2)
    new = tuple(LinkSpec(pair, (NEW_RAIL,)) for pair in pairs if lonely & set(pair))
    return replace(cluster, links=(*cluster.links, *new))


def with_rails(cluster: ClusterSpec, change: Callable[[RailSpec], RailSpec]) -> ClusterSpec:
    """The same cluster with every rail changed."""
    links = (replace(link, rails=tuple(map(change, link.rails))) for link in cluster.links)
    return replace(cluster, links=tuple(links))
