"""Hosts of each of a model's replicas in a cluster, which share none: by the planner, as it sees the hosts now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ferrule.agent.placement.devices import HostDevices, cluster_of
from ferrule.agent.placement.hosts import require_known
from ferrule.cluster.client import ask_here
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetStatus
from ferrule.cluster.records import Member
from ferrule.engine.host.lost_devices import LostDevices
from ferrule.engine.options import EngineOptions
from ferrule.errors import ConfigError
from ferrule.model import ModelSpec
from ferrule.plan.cluster import HostReport
from ferrule.plan.replicas import divide, replicas_question, worthwhile_replicas

Hosts = tuple[str, ...]
"""Names of hosts."""


async def replica_hosts(
    home: ClusterHome, options: EngineOptions, wanted: Sequence[str], count: int, model: ModelSpec, *, split: bool
) -> tuple[Hosts, ...]:
    """Hosts of each replica: ``count`` of them, or (0) as many as the planner finds best. ``wanted``: only on these,
    all if empty; ``split``: the user has said how. Also hosts that are away have their place, so that a copy comes to
    them when they are back. Raises `ConfigError` where there are fewer hosts than replicas."""
    status = await ask_here(home, GetStatus())
    require_known(wanted, status.hosts)
    members = [each for each in status.hosts if not each.install_engine and (not wanted or each.name in wanted)]
    names = sorted(each.name for each in members)
    if len(names) < max(count, 1):
        raise ConfigError(
            f"{count} replicas need {count} hosts that can run the model, and there are {len(names)}: "
            f"{', '.join(names) or 'none'}; several on one host: ferrule serve --here --replicas {count}"
        )
    up = [each for each in members if each.is_up]
    if split or (count and len(up) < len(members)):
        return divide([(name,) for name in names], count or len(names) // _hosts_of_one(options, len(names)))
    described = await HostDevices(home, options.device).described(up, LostDevices(), fresh=False)
    if count and len(described) < len(members):
        return divide([(name,) for name in names], count)
    return await asyncio.to_thread(_planned, options, count, model, up, described)


def _hosts_of_one(options: EngineOptions, hosts: int) -> int:
    """Hosts that one copy takes with a rank on each."""
    return min(options.ranks, hosts)


def _planned(
    options: EngineOptions, count: int, model: ModelSpec, up: Sequence[Member], described: Mapping[str, HostReport]
) -> tuple[Hosts, ...]:
    members = [member for member in up if member.host in described]
    names = tuple(sorted(member.name for member in members))
    if not members:
        return divide([(each.name,) for each in up], max(1, count))
    cluster = cluster_of(members, described)
    question = replicas_question(model, cluster, count or None, options.max_context)
    found = worthwhile_replicas(question, count or None, whole_hosts=True)
    if found is None:  # where there should be several, the planner of each says what is missing where
        return divide([(name,) for name in names], count or 1)
    groups = [list(dict.fromkeys(cluster.by_name[device].host_name for device in group)) for group in found.groups]
    spare = [name for name in names if not any(name in group for group in groups)]
    for number, name in enumerate(spare):  # to which a copy goes that loses its own
        groups[number % len(groups)].append(name)
    return tuple(map(tuple, groups))
