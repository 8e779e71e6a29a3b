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


def link_traits(cluster: ClusterSpec, a: str, b: str) -> Traits:
    link = cluster.link(a, b)
    if link is None:
        return ()
    return tuple(sorted((rail.alpha, rail.bandwidth, rail.transport) for rail in link.rails))


def interchangeable(cluster: ClusterSpec) -> list[list[str]]:
    """Classes of devices any two of which can change places and nothing else changes: equal in all but name, with
    equal links to each other device. Within a class all links are then equal too. Sorted, whatever their order in
    the cluster."""
    names = sorted(device.name for device in cluster.devices)
    classes: list[list[str]] = []
    for name in names:
        for known in classes:
            first = known[0]
            if traits(cluster.by_name[name]) == traits(cluster.by_name[first]) and all(
                link_traits(cluster, name, other) == link_traits(cluster, first, other)
                for other in names
                if other not in (name, first)
            ):
                known.append(name)
                break
        else:
            classes.append([name])
    return classes
