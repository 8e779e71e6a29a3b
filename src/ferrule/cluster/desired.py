"""Desired state of a cluster: the values of its records of models and of Ray. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta

from ferrule.errors import ClusterError
from ferrule.units import format_bytes

HostId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=4096)]
PlanText = Annotated[str, Meta(max_length=1 << 18)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=1)]

MOST_ADAPTERS = 64
MOST_REPLICAS = 64
MOST_MODELS = 64
"""Behind one address."""
API_PORT = 8420
"""Of the first model on a host."""
RAY_PORT = 8600
RAY_STORE_BYTES = 200 << 20
MIN_RAY_STORE_BYTES = 80 << 20
"""Ray refuses less than 75 MiB."""
_RAY_PORTS = 300


@dataclass(frozen=True, kw_only=True)
class OfferedModel:
    """One of several models behind an address, by its ``name``. ``aliases``: further ones; ``ttl``: seconds without
    requests after which it is unloaded; ``pin``: never unloaded; ``preload``: loaded at the start. The others: as in
    `DesiredModel`."""

    name: Name
    model: Text
    dtype: str | None = None
    weights: str | None = None
    kv_cache: str | None = None
    max_context: Count | None = None
    threads: Count | None = None
    tensor: Count | None = None
    pipeline: Count | None = None
    device: str | None = None
    adapters: Annotated[tuple[Text, ...], Meta(max_length=MOST_ADAPTERS)] = ()
    tool_parser: Text = "auto"
    aliases: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    pin: bool = False
    ttl: Annotated[float, Meta(ge=0)] | None = None
    preload: bool = False


@dataclass(frozen=True, kw_only=True)
class DesiredModel:
    """A model should be up. ``host``: the id of the host that serves it; ``owner``: of the one on which it was ordered.
    ``listen`` and ``port``: where its clients come; ``key``: they need one. ``certificate`` and ``private_key``: files
    for TLS on the host that serves it; ``plain_http``: beyond loopback without; ``request_log``: a file there;
    ``origins``: of web pages that may use it; ``image_urls``: it fetches images that requests name. ``hosts``: the
    names of those that may have ranks, all where it is empty. ``adapters``: ``NAME=PATH`` of each. ``plan``: what
    `ferrule plan --json` printed, if that says where ranks go. ``replicas``: whole copies, each on hosts of its own; 0
    for as many as are best. ``aliases``: ``ALIAS=NAME`` of each. ``models``: several that share the address, and on
    each device ``memory_limit`` bytes; then ``model`` is the first one's. ``prefill``: so many further ranks compute
    prompts, on ``prefill_hosts`` and there on ``prefill_device``; 0: where and whether is the planner's choice. The
    others are options of the engine, None for its own defaults."""

    model: Text
    host: HostId
    owner: HostId
    port: Port = API_PORT
    listen: Text = "127.0.0.1"
    key: bool = False
    certificate: Text | None = None
    private_key: Text | None = None
    plain_http: bool = False
    request_log: Text | None = None
    origins: tuple[Text, ...] = ()
    image_urls: bool = False
    max_queue_time: Text = "off"
    hosts: tuple[Name, ...] | None = None
    dtype: str | None = None
    weights: str | None = None
    kv_cache: str | None = None
    max_context: Count | None = None
    threads: Count | None = None
    tensor: Count | None = None
    pipeline: Count | None = None
    self_test: bool | None = None
    standby: bool | None = None
    encrypt: bool | None = None
    graphs: bool | None = None
    prefix_cache: bool | None = None
    prefix_disk: Annotated[int, Meta(ge=0)] | None = None
    inter_token_limit: Text | None = None
    speculate: Text | None = None
    stream_weights: Annotated[int, Meta(ge=0)] | None = None
    device: str | None = None
    plan: PlanText | None = None
    adapters: Annotated[tuple[Text, ...], Meta(max_length=MOST_ADAPTERS)] = ()
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] | None = None
    tool_parser: Text = "auto"
    aliases: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    models: Annotated[tuple[OfferedModel, ...], Meta(max_length=MOST_MODELS)] = ()
    memory_limit: Count | None = None
    expert_parallel: bool | None = None
    expert_exchange: bool | None = None
    context_parallel: Count | None = None
    shares: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(max_length=1000)] | None = None
    prefill: Annotated[int, Meta(ge=0, le=1024)] | None = None
    prefill_hosts: tuple[Name, ...] | None = None
    prefill_device: str | None = None

    def only(self, one: OfferedModel) -> DesiredModel:
        """As if ``one`` of its ``models`` were the only one."""
        both = {each.name for each in fields(self)} & {each.name for each in fields(one)} - {"aliases"}
        return replace(self, models=(), aliases=(), **{name: getattr(one, name) for name in both})


@dataclass(frozen=True)
class DesiredRay:
    """Ray should run on all hosts. ``head``: the id of the host of its head; ``address``: that host's, for the others;
    ``port``: the first one of those that Ray takes on every host; ``store``: bytes of its object store on each.

    Raises `ClusterError` where Ray could not run so."""

    head: HostId
    address: str
    port: int = RAY_PORT
    store: int = RAY_STORE_BYTES

    def __post_init__(self) -> None:
        try:
            ip_address(self.address)
        except ValueError as error:
            raise ClusterError(f"the record about Ray cannot be used: {error}") from None
        if not 1024 <= self.port <= 65536 - _RAY_PORTS:
            raise ClusterError(
                f"Ray cannot take {_RAY_PORTS} ports from {self.port} on; choose from 1024 on: --ray-port"
            )
        if self.store < MIN_RAY_STORE_BYTES:
            raise ClusterError(f"Ray's object store needs {format_bytes(MIN_RAY_STORE_BYTES)} at least: --ray-memory")

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last one on every host."""
        return self.port, self.port + _RAY_PORTS - 1

    @property
    def place(self) -> str:
        return f"{self.address}:{self.port}"
