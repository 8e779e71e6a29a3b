"""Equivalence classes of interchangeable devices of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec

Traits = tuple[object, ...]


def traits(device: DeviceSpec) -> Traits:
    """All that tells devices apart but their names."""
    alike = vars(replace(device, name="any"))
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in alike.values())


def pair_traits(cluster: ClusterSpec, a: str, b: str) -> Traits:
    pair = cluster.pair(a, b)
    if pair is None:
        return ()
    return tuple(sorted((rail.alpha, rail.bandwidth, rail.transport) for rail in pair.rails))


def interchangeable(cluster: ClusterSpec) -> list[list[str]]:
    """Classes of devices any two of which can change places and nothing else changes: equal in all but name, with
    equal rails to each other device. Within a class all rails are then equal too. Sorted, whatever their order in
    the cluster."""
    names = sorted(device.name for device in cluster.devices)
    classes: list[list[str]] = []
    for name in names:
        for known in classes:
            first = known[0]
            if traits(cluster.by_name[name]) == traits(cluster.by_name[first]) and all(
                pair_traits(cluster, name, other) == pair_traits(cluster, first, other)
                for other in names
                if other not in (name, first)
            ):
                known.append(name)
                break
        else:
            classes.append([name])
    return classes
