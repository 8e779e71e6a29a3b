"""The nodes of a Ray as places for ranks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from ferrule.errors import LaunchError
from ferrule.launch.places import Place
from ferrule.launch.request import chosen_of
from ferrule.process import last_line

RAY_CLIENT = ("-P", "-m", "ferrule.launch.ray_client")
_SECONDS = 60.0


class RayHost(msgspec.Struct, frozen=True):
    """A node that lives, as the bridge lists it. ``node``: Ray's id of it."""

    node: str
    name: str
    address: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class RayPlace(Place):
    """A node of the Ray at ``ray``. ``cpus``, ``gpus``: what the ranks take of it."""

    ray: str
    node: RayHost
    cpus: int
    gpus: int

    def command(self) -> list[str]:
        words = ["to", self.ray, self.node.node, self.node.address, str(self.cpus), str(self.gpus)]
        return [sys.executable, *RAY_CLIENT, *words]

    def why(self, code: int, told: str) -> str:
        if "No module named" in told and "ferrule" in told:
            return f"the Python of Ray on {self.entry.name} has no Ferrule; install it there, the same version as here"
        return super().why(code, told)


def ray_places(address: str, ranks: int | None, hosts: str | None, env: Mapping[str, str]) -> list[Place]:
    """The node of this host first. Raises `LaunchError` and `ConfigError`."""
    command = [sys.executable, *RAY_CLIENT, "nodes", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"Ray at {address} does not answer within {_SECONDS:g} s") from None
    if done.returncode:
        raise LaunchError(
            f"cannot use Ray at {address}: {last_line(done.stderr) or 'it says nothing'}; a node of it must run on "
            "this host, and RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH must be those of it"
        )
    listed = msgspec.json.decode(done.stdout.splitlines()[-1], type=list[RayHost])
    names = Counter(each.name for each in listed)
    nodes = {each.name if names[each.name] == 1 else each.address: each for each in listed}
    found: list[Place] = []
    for entry in chosen_of(list(nodes), ranks, hosts, f"Ray at {address}"):
        node = nodes[entry.name]
        entry = replace(entry, env={**env, **entry.env})
        found.append(RayPlace(entry, address, node, min(entry.slots, node.cpus), min(entry.slots, node.gpus)))
    return found
