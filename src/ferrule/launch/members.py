"""The hosts of the cluster as places for ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ferrule.cluster.client import ask
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetStatus
from ferrule.launch.places import ClusterPlace, LocalPlace, Place
from ferrule.launch.request import chosen_of


def member_places(home: ClusterHome, ranks: int | None, hosts: str | None, env: Mapping[str, str]) -> list[Place]:
    """This host first; those that do not answer are left out. Raises `ClusterError` and `ConfigError`."""
    up = [member for member in ask(home, GetStatus()).hosts if member.is_up]
    members = {member.name: member for member in sorted(up, key=lambda member: member.state != "here")}
    found: list[Place] = []
    for entry in chosen_of(list(members), ranks, hosts, f"the cluster {home.name!r}"):
        entry, member = replace(entry, env={**env, **entry.env}), members[entry.name]
        if member.host == home.settings.host:
            found.append(LocalPlace(entry))
        else:
            found.append(ClusterPlace(entry, home, member))
    return found
