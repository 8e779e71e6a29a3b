"""Ray on the cluster: what ``ferrule up --ray`` does, and what is shown of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ferrule.agent.ray.desired import connection_env
from ferrule.cluster import client
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.state import ray_version
from ferrule.errors import ClusterError, ConfigError
from ferrule.installation import pip_install
from ferrule.units import format_bytes

UP_SECONDS = 180.0
_POLL_SECONDS = 0.25
_STATES = {"head": "green", "node": "green", "starting": "yellow", "failed": "bold red"}


def check_installed() -> None:
    """Raises `ConfigError` where Ray cannot run here."""
    if not ray_version():
        raise ConfigError(f"Ray needs the cluster extra (ray is not installed): {pip_install('cluster')}")


def order(home: ClusterHome, wanted: bool, port: int | None, store: int | None) -> None:
    """Have Ray on all hosts, or on none, and wait until that is so here. Raises `ClusterError`."""
    client.ask(home, "want_ray", wanted=wanted, port=port, store=store)
    deadline = time.monotonic() + UP_SECONDS
    while True:
        time.sleep(_POLL_SECONDS)
        status: dict[str, Any] = client.ask(home, "ray")
        if status["state"] in (("head", "node") if wanted else ("off",)):
            return
        if wanted and status["state"] == "failed":
            raise ClusterError(f"Ray does not run here: {status['why']}. It is tried again until: ferrule up --no-ray")
        if time.monotonic() > deadline:
            raise ClusterError(f"Ray is {status['state']} still after {UP_SECONDS:g} s; see {home.log}")


def connection(home: ClusterHome) -> dict[str, str]:
    """The environment of a program on this host that uses the cluster's Ray. Raises `ClusterError`."""
    status = client.ask(home, "ray")
    if "address" not in status:
        raise ClusterError(f"the cluster {home.name!r} has no Ray; start it on all hosts: ferrule up --ray")
    return connection_env(status["address"], status["token_file"])


def ray_lines(status: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Where Ray is, and how its nodes are; nothing where the cluster has none."""
    names = {each["host"]: each["name"] for each in status["hosts"]}
    rays = {names[host]: report["ray"] for host, report in reports.items() if "address" in report.get("ray", {})}
    first = next(iter(rays.values()), None)
    if first is None:
        return
    low, high = first["ports"]
    line = Text(f"\nRay {first['version']} at {first['address']}, its head on {first['head']}, ports {low}-{high}, ")
    yield line + Text(f"{format_bytes(first['store'])} for objects on each host: ")
    for name, each in sorted(rays.items()):
        line = Text(f"  {name}: ") + Text(each["state"], style=_STATES.get(each["state"], ""))
        yield line + Text(f", {each['why']}" if each.get("why") else "")
