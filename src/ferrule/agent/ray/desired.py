"""Ray on the cluster: what follows for one host from what was decided; pure.

`plan` compares the node that runs here with what the cluster wants, as of a moment, and says what to do; `after` is the
node after something happened to it. `ferrule.agent.ray.node` does what is planned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Literal

from ferrule.agent.control_loop import TAKE_OVER_SECONDS, Supervised
from ferrule.cluster.desired import DesiredRay
from ferrule.cluster.records import Member
from ferrule.installation import pip_install

NAMESPACE = "ferrule"
"""Of the actors that tell of their hosts; each has its host's name."""
State = Literal["off", "starting", "head", "node", "failed"]
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""Pattern of a label's value in Ray."""
_FIRST_WORKER = 20

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


def skew(own: Member, head: Member) -> str | None:
    """Reason why this host cannot be a node of that head's, if its versions forbid it."""
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

    def arguments(self, temp: str, *, client: bool) -> list[str]:
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


@dataclass(frozen=True)
class Node(Supervised):
    """The Ray node of this host. ``plan``: of that which runs, or is to be started again; ``why``: why it failed."""

    plan: NodePlan | None = None
    state: State = "off"
    why: str = ""


@dataclass(frozen=True)
class View:
    """The cluster as this host sees it. ``up``: the ids of the hosts that answer, its own too; ``head_silent``: for how
    many seconds nothing was heard of the head's host. ``addresses``: this host's that Ray could use; ``address``: the
    one at which most others reach it; ``toward``: the one by which it reaches Ray's head, or ``no_route``: why there is
    none."""

    own: Member
    members: Mapping[str, Member]
    up: Collection[str]
    head_silent: float
    addresses: Collection[str]
    address: str
    toward: str = ""
    no_route: str = ""


# What may happen to the node


@dataclass(frozen=True)
class Begun:
    plan: NodePlan


@dataclass(frozen=True)
class Up:
    """It works."""


@dataclass(frozen=True)
class Failed:
    """It ended, or cannot be started; ``lasting``: whether another plan has to come first."""

    why: str
    lasting: bool = False


@dataclass(frozen=True)
class Ended:
    """As was wanted."""


Event = Begun | Up | Failed | Ended


def after(node: Node, event: Event, now: float) -> Node:
    match event:
        case Begun(planned):
            return replace(node, plan=planned, state="starting", why="", running=True)
        case Up():
            head = node.plan is not None and node.plan.is_head
            return replace(node, state="head" if head else "node", why="", failures=0)
        case Failed(why, lasting):
            return replace(node.failed(now), plan=None if lasting else node.plan, state="failed", why=why)
        case Ended():
            return Node()


# What to do


@dataclass(frozen=True)
class Decide:
    """Change the cluster's record; ``why``: for the log."""

    desired: DesiredRay
    why: str


@dataclass(frozen=True)
class End:
    pass


@dataclass(frozen=True)
class Begin:
    plan: NodePlan


@dataclass(frozen=True)
class GiveUp:
    """No node can be here."""

    why: str


Action = Decide | End | Begin | GiveUp


def plan(node: Node, desired: DesiredRay | None, view: View, now: float) -> list[Action]:
    actions: list[Action] = []
    if desired is not None and (decided := _decided(node, desired, view)) is not None:
        actions.append(decided)
        desired = decided.desired
    wanted = _planned(node, desired, view)
    if isinstance(wanted, GiveUp):
        if node.plan is not None:
            actions.append(End())
        return [*actions, wanted] if node.plan is not None or node.why != wanted.why else actions
    if wanted != node.plan or wanted is None:
        if node != Node():
            actions.append(End())
        node = Node()
    if wanted is not None and node.is_due(now):
        actions.append(Begin(wanted))
    return actions


def _decided(node: Node, desired: DesiredRay, view: View) -> Decide | None:
    """Whether Ray's head should move to this host, or to another address of it."""
    own = view.own.host
    if desired.head == own:
        met = len(view.up) > 1
        usable = desired.address in view.addresses and not (met and ip_address(desired.address).is_loopback)
        # A cable that is out for a moment must not cost what runs on this host.
        if not usable and (met or node.state == "failed") and view.address != desired.address:
            return Decide(replace(desired, address=view.address), "Ray's head has another address")
    elif view.head_silent > TAKE_OVER_SECONDS and successor(desired, view.members, view.up) == own:
        moved = replace(desired, head=own, address=view.address)
        return Decide(moved, "the host of Ray's head is gone: it is here from now on")
    return None


def _planned(node: Node, desired: DesiredRay | None, view: View) -> NodePlan | GiveUp | None:
    """The node that should run here, or why none can."""
    if desired is None:
        return None
    head = view.members.get(desired.head)
    if head is None or desired.head not in view.up:
        if node.plan is not None and node.plan.desired == desired:
            return node.plan  # it goes on until there is another head
        return GiveUp("the host of Ray's head does not answer")
    if (problem := skew(view.own, head)) is not None:
        return GiveUp(problem)
    if desired.head == view.own.host:
        return NodePlan(desired, view.own.name, desired.address, is_head=True)
    if view.no_route:
        return GiveUp(view.no_route)
    return NodePlan(desired, view.own.name, view.toward, is_head=False)


def resource(host: str) -> str:
    """Ray's name for being on a host: every node has one of it."""
    return f"ferrule_host:{host}"


def connection_env(place: str, token_file: str) -> dict[str, str]:
    """Environment variables that a program needs to connect. The token itself stands in no environment and on no
    command line."""
    return {"RAY_ADDRESS": place, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file}


def node_env(environ: Mapping[str, str], token_file: str) -> dict[str, str]:
    """The environment of a Ray node: this process's, but for what would lead it to another cluster."""
    theirs = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
    kept = {name: value for name, value in environ.items() if name not in theirs}
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file}
    return HEALTH | LEAN | kept | auth
