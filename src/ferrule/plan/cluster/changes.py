"""The same cluster with one thing more: a host, a cable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, count

from ferrule.plan.cluster.spec import ClusterSpec, PairSpec, RailSpec

NEW_RAIL = RailSpec("10 Gigabit Ethernet", 22e-6, 9.4e9 / 8)
"""For hosts that have no cable yet: figures of ethernet-10g."""


def one_more(cluster: ClusterSpec, like: str) -> ClusterSpec:
    """One more device ``like`` another, with the same cables, and between the two the best that either has."""
    stem, dash, digits = like.rpartition("-")
    stem = stem if dash and digits.isdecimal() else like
    name = next(name for number in count(2) if (name := f"{stem}-{number}") not in cluster.by_name)
    own = [pair for pair in cluster.pairs if like in pair.between]
    pairs = [PairSpec((name, next(end for end in pair.between if end != like)), pair.rails) for pair in own]
    rails = min(own, key=lambda pair: (pair.alpha, -pair.bandwidth)).rails if own else (NEW_RAIL,)
    pairs.append(PairSpec((like, name), rails))
    device = replace(cluster.by_name[like], name=name, host="")
    return replace(cluster, devices=(*cluster.devices, device), pairs=(*cluster.pairs, *pairs))


def joined(cluster: ClusterSpec) -> ClusterSpec | None:
    """With a new rail to every device that has no cable at all; None where each has one."""
    lonely = {device.name for device in cluster.devices} - {end for pair in cluster.pairs for end in pair.between}
    if not lonely or len(cluster.devices) == 1:
        return None
    new = tuple(PairSpec(ends, (NEW_RAIL,)) for ends in combinations(cluster.by_name, 2) if lonely & set(ends))
    return replace(cluster, pairs=(*cluster.pairs, *new))


def with_rails(cluster: ClusterSpec, change: Callable[[RailSpec], RailSpec]) -> ClusterSpec:
    """The same cluster with every rail changed."""
    pairs = (replace(pair, rails=tuple(map(change, pair.rails))) for pair in cluster.pairs)
    return replace(cluster, pairs=tuple(pairs))
