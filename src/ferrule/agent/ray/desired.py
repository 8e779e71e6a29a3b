"""What the cluster decided about Ray, and what follows for one host; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any, Self

from ferrule.cluster.records import Member
from ferrule.errors import ClusterError
from ferrule.installation import pip_install
from ferrule.units import format_bytes

NAME = "ray"
"""Of the one record of kind `RAY`."""
NAMESPACE = "ferrule"
"""Of the actors that tell of their hosts; each has its host's name."""
FIRST_PORT = 8600
STORE_BYTES = 200 << 20
MIN_STORE_BYTES = 80 << 20
"""Ray refuses less than 75 MiB."""
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""What Ray takes as the value of a label."""
_FIRST_WORKER, _ALL_PORTS = 20, 300

HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_agent_register_timeout_ms": "60000",
}
"""A frozen host is noticed after some 4 s; by default it takes Ray 66 s. Sooner, busy hosts would be taken for dead.
On those Ray's own processes may need more than the 30 s that they have to register."""
LEAN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "false",
    "RAY_enable_metrics_collection": "false",
}


@dataclass(frozen=True)
class DesiredRay:
    """Ray should run on all hosts. ``head``: the id of the host of its head; ``address``: that host's, for the others;
    ``port``: the first one of those that Ray takes on every host; ``store``: bytes of its object store on each."""

    head: str
    address: str
    port: int = FIRST_PORT
    store: int = STORE_BYTES

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises `ClusterError`."""
        try:
            made = cls(str(fields["head"]), str(ip_address(fields["address"])), fields["port"], fields["store"])
        except (KeyError, ValueError) as error:
            raise ClusterError(f"the record about Ray cannot be used: {error}") from None
        check_port(made.port)
        check_store(made.store)
        return made

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last one on every host."""
        return self.port, self.port + _ALL_PORTS - 1

    @property
    def place(self) -> str:
        return f"{self.address}:{self.port}"


def check_port(port: object) -> int:
    """Raises `ClusterError`."""
    if not isinstance(port, int) or not 1024 <= port <= 65536 - _ALL_PORTS:
        raise ClusterError(f"Ray cannot take {_ALL_PORTS} ports from {port!r} on; choose from 1024 on: --ray-port")
    return port


def check_store(store: object) -> int:
    """Raises `ClusterError`."""
    if not isinstance(store, int) or store < MIN_STORE_BYTES:
        raise ClusterError(f"Ray's object store needs {format_bytes(MIN_STORE_BYTES)} at least: --ray-memory")
    return store


def skew(own: Member, head: Member) -> str | None:
    """Why this host cannot be a node of that head's, if its versions forbid it."""
    if not own.ray:
        return f"Ray is not installed here: {pip_install('cluster')}"
    if not head.ray:
        return f"{head.name}, where Ray's head should run, has no Ray; install Ferrule's extra \"cluster\" there"
    differ = [
        f"{what} {mine} here, {theirs} on {head.name}, where Ray's head runs"
        for what, mine, theirs in (("Ray", own.ray, head.ray), ("Python", own.python, head.python))
        if mine != theirs
    ]
    return f"{'; '.join(differ)}: install the same on both" if differ else None


def successor(desired: DesiredRay, members: Mapping[str, Member], up: Collection[str]) -> str | None:
    """The id of the host that takes the head over: the first of those that answer and have Ray, and if possible the
    versions of the old one, so that all others can remain its nodes."""
    old = members.get(desired.head)
    able = sorted(host for host in up if members[host].ray and host != desired.head)
    same = [host for host in able if old is not None and skew(members[host], old) is None]
    return next(iter(same or able), None)


@dataclass(frozen=True)
class NodePlan:
    """The Ray node of one host. ``address``: its own, for the others; ``name``: the host's."""

    desired: DesiredRay
    name: str
    address: str
    is_head: bool

    @property
    def own_ports(self) -> dict[str, int]:
        """Those that must be free, by what listens there."""
        names = ["node manager", "object manager", "runtime environments"]
        ports = {name: self.desired.port + 1 + index for index, name in enumerate(names)}
        return {"head": self.desired.port, **ports} if self.is_head else ports

    def words(self, temp: str, *, client: bool) -> list[str]:
        """Of ``ray start``. ``client``: whether Ray's client server is installed; it would choose a port itself."""
        first = self.desired.port
        told = [
            *(["--head", "--port", str(first)] if self.is_head else ["--address", self.desired.place]),
            *["--block", "--node-ip-address", self.address],
            *["--node-manager-port", str(first + 1), "--object-manager-port", str(first + 2)],
            *["--runtime-env-agent-port", str(first + 3), "--metrics-export-port", str(first + 4)],
            *["--dashboard-agent-grpc-port", str(first + 5), "--dashboard-agent-listen-port", str(first + 6)],
            *["--min-worker-port", str(first + _FIRST_WORKER), "--max-worker-port", str(self.desired.ports[1])],
            *["--object-store-memory", str(self.desired.store), "--temp-dir", temp],
            *["--resources", json.dumps({resource(self.name): 1})],
            *(["--labels", f"ferrule_host={self.name}"] if _LABEL.fullmatch(self.name) else []),
            *["--disable-usage-stats", "--log-style", "record", "--log-color", "false"],
        ]
        if self.is_head:
            told += ["--include-dashboard", "false", "--dashboard-host", "127.0.0.1"]
            told += ["--dashboard-port", str(first + 8)]
            told += ["--ray-client-server-port", str(first + 7)] if client else []
        return told


def resource(host: str) -> str:
    """Ray's name for being on a host: every node has one of it."""
    return f"ferrule_host:{host}"


def connection_env(place: str, token_file: str) -> dict[str, str]:
    """What a program needs to connect. The token itself stands in no environment and on no command line."""
    return {"RAY_ADDRESS": place, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file}


def node_env(environ: Mapping[str, str], token_file: str) -> dict[str, str]:
    """The environment of a Ray node: this process's, but for what would lead it to another cluster."""
    theirs = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
    kept = {name: value for name, value in environ.items() if name not in theirs}
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file}
    return HEALTH | LEAN | kept | auth
