"""Reports of hosts and model servers on request: types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ferrule.cluster.desired import DesiredModel
from ferrule.cluster.records import Member
from ferrule.secure import Address


@dataclass(frozen=True)
class DeviceReport:
    """Device that computes. Memory in bytes; ``free`` is what the system says now."""

    kind: str
    name: str
    memory: int
    free: int


@dataclass(frozen=True)
class LinkReport:
    """An interface with a cable or a network behind it. ``gb_s``: gigabits per second, where the driver tells."""

    name: str
    kind: str
    up: bool
    gb_s: float | None
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class RayStatus:
    """Ray on one host: how its node is, and ``why`` where it failed. ``version``: that which is installed there, empty
    where none is. The others are None where the cluster wants no Ray: ``address`` and ``head`` (a host's name) of its
    head, ``ports`` from the first to the last, ``store`` in bytes; ``node_address``: of this host's node."""

    state: Literal["off", "starting", "head", "node", "failed"]
    version: str
    why: str = ""
    address: str | None = None
    head: str | None = None
    ports: tuple[int, int] | None = None
    token_file: str | None = None
    store: int | None = None
    node_address: str | None = None


@dataclass(frozen=True)
class HostReport:
    """``cpus``: those that it may use, of the running kernel ``kernel`` (its boot id), which hosts that share a machine
    have in common. ``load``: of all processors, 0 to 1, over the last minute. ``celsius``: of the hottest chip;
    ``watts``: of the chips that tell; None where nothing tells."""

    cores: int
    cpus: tuple[int, ...]
    kernel: str
    load: float
    devices: tuple[DeviceReport, ...]
    links: tuple[LinkReport, ...]
    celsius: float | None
    watts: float | None
    agent_bytes: int
    agent_cpu_seconds: float
    ray: RayStatus


@dataclass(frozen=True, kw_only=True)
class HostStatus(Member):
    """A member and how another host sees it. ``state``: ``stopped`` where its agent said so, ``lost`` where it went
    without a word. ``problem``: why there is no connection; ``reached_at``: the address by which there is one."""

    state: Literal["here", "up", "stopped", "lost"]
    up_seconds: float | None = None
    heard_seconds: float | None = None
    problem: str | None = None
    reached_at: Address | None = None

    @property
    def is_up(self) -> bool:
        return self.state in ("here", "up")


@dataclass(frozen=True)
class SeedStatus:
    """A place where a member may be, of which nothing else is known."""

    place: Address
    up: bool
    refused: bool
    problem: str | None


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster as ``host`` (an id) sees it. ``rivals``: names of hosts of another cluster that is called the same.
    ``pid`` and ``started``: of the agent that answers, the latter in seconds since 1970."""

    cluster: str
    fingerprint: str
    host: str
    hosts: tuple[HostStatus, ...]
    seeds: tuple[SeedStatus, ...]
    mdns: bool
    rivals: tuple[str, ...]
    pid: int
    started: float


@dataclass(frozen=True)
class RankPlace:
    """A rank, its host's name, and the transports to the others."""

    rank: int
    host: str
    transports: str


@dataclass(frozen=True)
class ReplicaStatus:
    """One of a model's whole copies. ``strategy`` and ``hosts``: as the model's, of this copy."""

    state: str
    detail: str = ""
    strategy: str | None = None
    hosts: tuple[str, ...] = ()
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class ServerState:
    """State of a model server, as it tells it. ``detail``: what it does or why it fails; ``note``: what people should
    know although it runs. ``predicted`` and ``measured``: tokens per second of one request; ``standby``: standby
    processes; ``replicas``: where there are to be several, whose hosts ``hosts`` are together. ``models``: each of
    several that it serves; then ``running``, ``waiting``, ``recoveries`` and ``standby`` are those of all."""

    state: str = "starting"
    detail: str = ""
    note: str = ""
    plan: str | None = None
    strategy: str | None = None
    hosts: tuple[str, ...] = ()
    predicted: float | None = None
    measured: float | None = None
    running: int = 0
    waiting: int = 0
    recoveries: int = 0
    standby: int = 0
    ranks: tuple[RankPlace, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    models: tuple[OfferedState, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OfferedState(ServerState):
    """One of several models behind an address. ``memory``: bytes that it needs, wherever it is loaded."""

    name: str
    memory: int
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelStatus(ServerState):
    """A model server on the host that is asked. ``wanted``: None where it is not wanted any more, and ends."""

    name: str
    wanted: DesiredModel | None
    pid: int | None
    failures: int = 0
