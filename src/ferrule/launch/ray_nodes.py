"""The nodes of a Ray as places for ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ferrule.errors import LaunchError
from ferrule.launch.places import RAY_BRIDGE, Place, RayPlace
from ferrule.launch.request import chosen_of

_SECONDS = 60.0


def ray_places(address: str, ranks: int | None, hosts: str | None, env: Mapping[str, str]) -> list[Place]:
    """The node of this host first. Raises `LaunchError` and `ConfigError`."""
    command = [sys.executable, *RAY_BRIDGE, "nodes", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"Ray at {address} does not answer within {_SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it says nothing"]
        raise LaunchError(
            f"cannot use Ray at {address}: {lines[-1]}; a node of it must run on this host, and RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN_PATH must be those of it"
        )
    listed = json.loads(done.stdout.splitlines()[-1])
    names = Counter(each["name"] for each in listed)
    nodes = {each["name"] if names[each["name"]] == 1 else each["address"]: each for each in listed}
    found: list[Place] = []
    for entry in chosen_of(list(nodes), ranks, hosts, f"Ray at {address}"):
        node = nodes[entry.name]
        cpus, gpus = min(entry.slots, node["cpus"]), min(entry.slots, node["gpus"])
        entry = replace(entry, env={**env, **entry.env})
        found.append(RayPlace(entry, address, node["node"], node["address"], cpus, gpus))
    return found
