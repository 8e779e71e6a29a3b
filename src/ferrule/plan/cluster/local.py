"""Ranks on one machine as the planner sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec, PairSpec, RailSpec

SHARED_MEMORY = RailSpec("shared memory", 1e-6, 8e9, "shm")
"""Between processes of one machine: `ferrule bench fabric` shows 0.1 to 0.3 us and 4 to 20 GB/s; with the call that
starts a collective about a microsecond."""

THROUGH_HOST = replace(SHARED_MEMORY, name="through the host")
"""Between two devices of one host, copies to and from them apart."""


def pairs_of_host(devices: Sequence[DeviceSpec]) -> list[PairSpec]:
    """Pairs of any two devices of one host, which exchange through its memory."""
    return [
        PairSpec((one.name, other.name), (one.staged(other.staged(THROUGH_HOST)),))
        for one, other in combinations(devices, 2)
    ]


def machine_of_ranks(device: DeviceSpec, ranks: int) -> ClusterSpec:
    """``device``, measured with all its threads, as ``ranks`` equal parts of it, each with its share of the threads."""
    parts = tuple(
        replace(
            device,
            name=f"{device.name}-{rank}" if ranks > 1 else device.name,
            kind=device.kind or device.name,
            memory=device.memory // ranks,
            memory_bandwidth=device.memory_bandwidth / ranks,
            flops={dtype: rate / ranks for dtype, rate in device.flops.items()},
        )
        for rank in range(ranks)
    )
    names = [part.name for part in parts]
    return ClusterSpec(parts, tuple(PairSpec(ends, (SHARED_MEMORY,)) for ends in combinations(names, 2)))
