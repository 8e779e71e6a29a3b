"""Which devices of a cluster are interchangeable."""

from __future__ import annotations

from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec

Traits = tuple[object, ...]


def traits(device: DeviceSpec) -> Traits:
    """All that tells devices apart but their names."""
    return (
        device.memory,
        device.memory_bandwidth,
        tuple(sorted(device.flops.items())),
        device.kind,
        device.launch_seconds,
        -1.0 if device.eager_seconds is None else device.eager_seconds,
        device.resume_seconds,
        device.disk_read or 0.0,
        device.runtime_bytes,
        device.watts_idle or 0.0,
        device.watts_busy or 0.0,
        device.price or 0.0,
    )


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
