"""Hosts that share a machine, as those of a lab and containers do, share its processors and its memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ferrule.plan.cluster.live import HostReport


@dataclass(frozen=True)
class HostCores:
    """``cpus``: the processors that a host may use, those of the running kernel ``kernel`` (its boot id, the same for
    all hosts of a machine)."""

    kernel: str
    cpus: tuple[int, ...]


def shares(hosts: Mapping[str, HostCores]) -> dict[str, float]:
    """The part of its processors that is each host's own, by the keys of ``hosts``: 1 for a machine of its own, 0.5 for
    each of two that share all of them."""
    return {name: _own_cpus(host, hosts) / max(1, len(host.cpus)) for name, host in hosts.items()}


def rank_threads(ranks: Sequence[str], hosts: Mapping[str, HostCores]) -> list[int]:
    """The threads of each rank; ``ranks``: the host of each. The ranks of a host divide what is its own of the
    processors; a host that is not in ``hosts`` has one."""
    own = {name: _own_cpus(host, hosts) for name, host in hosts.items()}
    return [max(1, int(own.get(host, 1.0)) // ranks.count(host)) for host in ranks]


def reports_by_share(reports: Mapping[str, HostReport]) -> dict[str, HostReport]:
    """As if each host were a machine of its own: memory and speed of what is shared are divided, and it is said so."""
    parts = shares({name: HostCores(report.host.kernel, report.host.cpus) for name, report in reports.items()})
    return {name: _by_share(report, parts[name]) for name, report in reports.items()}


def _own_cpus(host: HostCores, hosts: Mapping[str, HostCores]) -> float:
    beside = [set(other.cpus) for other in hosts.values() if other.kernel == host.kernel]
    return sum(1 / sum(cpu in cpus for cpus in beside) for cpu in host.cpus)


def _by_share(report: HostReport, part: float) -> HostReport:
    if part == 1:
        return report
    note = f"{report.host.host} shares its machine with other hosts: it counts with {part:.0%} of that"
    first, *others = (
        replace(
            device,
            memory=int(device.memory * part),
            memory_bandwidth=device.memory_bandwidth * part,
            flops={dtype: rate * part for dtype, rate in device.flops.items()},
        )
        for device in (report.device, *report.others)
    )
    return msgspec.structs.replace(report, device=first, others=tuple(others), notes=(*report.notes, note))
