"""Ray on the cluster: what ``ferrule up --ray`` does, and what is shown of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from ferrule.agent.ray.desired import connection_env
from ferrule.cluster import client
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetRay, WantRay
from ferrule.cluster.reports import ClusterStatus, HostReport
from ferrule.errors import ClusterError, ConfigError
from ferrule.installation import pip_install, version_of
from ferrule.units import format_bytes

UP_SECONDS = 180.0
_POLL_SECONDS = 0.25
_STATES = {"head": "green", "node": "green", "starting": "yellow", "failed": "bold red"}


def check_installed() -> None:
    """Raises `ConfigError` where Ray cannot run here."""
    if version_of("ray") is None:
        raise ConfigError(f"Ray needs the cluster extra (ray is not installed): {pip_install('cluster')}")


def order(home: ClusterHome, wanted: bool, port: int | None, store: int | None) -> None:
    """Have Ray on all hosts, or on none, and wait until that is so here. Raises `ClusterError`."""
    client.ask(home, WantRay(wanted, port, store))
    deadline = time.monotonic() + UP_SECONDS
    while True:
        time.sleep(_POLL_SECONDS)
        status = client.ask(home, GetRay())
        if status.state in (("head", "node") if wanted else ("off",)):
            return
        if wanted and status.state == "failed":
            raise ClusterError(f"Ray does not run here: {status.why}. It is tried again until: ferrule up --no-ray")
        if time.monotonic() > deadline:
            raise ClusterError(f"Ray is {status.state} still after {UP_SECONDS:g} s; see {home.log}")


def connection(home: ClusterHome) -> dict[str, str]:
    """The environment of a program on this host that uses the cluster's Ray. Raises `ClusterError`."""
    status = client.ask(home, GetRay())
    if status.address is None or status.token_file is None:
        raise ClusterError(f"the cluster {home.name!r} has no Ray; start it on all hosts: ferrule up --ray")
    return connection_env(status.address, status.token_file)


def ray_lines(status: ClusterStatus, reports: Mapping[str, HostReport]) -> Iterator[RenderableType]:
    """State of Ray and its nodes, in lines; nothing where the cluster has none."""
    rays = {each.name: reports[each.host].ray for each in status.hosts if each.host in reports}
    first = next((ray for ray in rays.values() if ray.address is not None), None)
    if first is None or first.ports is None or first.store is None:
        return
    low, high = first.ports
    line = Text(f"\nRay {first.version} at {first.address}, its head on {first.head}, ports {low}-{high}, ")
    yield line + Text(f"{format_bytes(first.store)} for objects on each host: ")
    for name, each in sorted(rays.items()):
        if each.address is not None:
            line = Text(f"  {name}: ") + Text(each.state, style=_STATES.get(each.state, ""))
            yield line + Text(f", {each.why}" if each.why else "")
