"""Reconciliation of this host's model servers with the cluster's records: which should run, and what to do; pure.

`plan` compares what runs here (`Server` by model) with what the cluster's records want, as of a moment, and says what
to do; `after` is a server after something happened to it. `ferrule.agent.models.servers` does what is planned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ferrule.agent.control_loop import TAKE_OVER_SECONDS, Supervised
from ferrule.cluster.desired import DesiredModel
from ferrule.cluster.reports import ServerState

GIVE_BACK_SECONDS = 3.0
"""Seconds that a host which took a model over and cannot serve it waits before it gives it back."""
READY = "ready"
_SERVING = (READY, "recovering")
"""Clients are connected, or will soon have their next token."""


@dataclass(frozen=True)
class Server(Supervised):
    """A model server of this host. ``desired``: the record that it was started for; ``told``: what it said last, at
    ``since`` by `time.monotonic`."""

    desired: DesiredModel
    since: float
    told: ServerState = field(default_factory=ServerState)

    @property
    def serves(self) -> bool:
        return self.told.state in _SERVING


@dataclass(frozen=True)
class View:
    """The cluster as this host (``host``, an id) sees it: the hosts that answer, for how many seconds nothing was heard
    of any other one that a record names, and those ``without_engine``, which can serve no model."""

    host: str
    up: Collection[str]
    silent: Mapping[str, float]
    without_engine: Collection[str] = ()

    @property
    def is_first(self) -> bool:
        """Whether this host is the first, by id, of those that answer and can serve."""
        return self.host == min((host for host in self.up if host not in self.without_engine), default=None)


# What may happen to a server


@dataclass(frozen=True)
class Started:
    pass


@dataclass(frozen=True)
class Told:
    state: ServerState


@dataclass(frozen=True)
class Failed:
    """It ended, or could not be started."""

    detail: str


Event = Started | Told | Failed


def after(server: Server, event: Event, now: float) -> Server:
    match event:
        case Started():
            return replace(server, running=True)
        case Told(state):
            failures = 0 if state.state == READY else server.failures
            return replace(server, told=state, since=now, failures=failures)
        case Failed(detail):
            return replace(server.failed(now), told=ServerState(state="failed", detail=detail), since=now)


# What to do


@dataclass(frozen=True)
class Move:
    """Have another host serve a model, by its record; ``why``: for the log."""

    name: str
    desired: DesiredModel
    why: str


@dataclass(frozen=True)
class Stop:
    name: str


@dataclass(frozen=True)
class Accept:
    """A model is to be served here from now on."""

    name: str
    desired: DesiredModel


@dataclass(frozen=True)
class Start:
    name: str


Action = Move | Stop | Accept | Start


def plan(
    actual: Mapping[str, Server], ending: Collection[str], desired: Mapping[str, DesiredModel], view: View, now: float
) -> list[Action]:
    """``ending``: models whose old process has still to end here, which has the port and the memory."""
    moves = [move for name, model in desired.items() if (move := _move(name, model, actual.get(name), view, now))]
    moved = {move.name: move.desired for move in moves}
    here = {name: model for name, model in {**desired, **moved}.items() if model.host == view.host}
    return [*moves, *_changes(actual, ending, here, now)]


def _move(name: str, model: DesiredModel, server: Server | None, view: View, now: float) -> Move | None:
    if model.host == view.host:
        cannot = server is not None and not server.serves and now - server.since > GIVE_BACK_SECONDS
        if model.owner != view.host and model.owner in view.up and cannot:
            return Move(name, replace(model, host=model.owner), "it cannot be served here: giving it back")
        return None
    if model.owner == view.host and server is not None and server.serves:
        return Move(name, replace(model, host=view.host), "it is served here still: taking it back")
    if model.host not in view.up and view.silent[model.host] > TAKE_OVER_SECONDS and view.is_first:
        return Move(name, replace(model, host=view.host), "the host that served it is gone: taking it over")
    return None


def _changes(
    actual: Mapping[str, Server], ending: Collection[str], here: Mapping[str, DesiredModel], now: float
) -> Iterator[Action]:
    stopped = [name for name, server in actual.items() if here.get(name) != server.desired]
    yield from map(Stop, stopped)
    busy = {*ending, *(name for name in stopped if actual[name].running)}
    for name, model in here.items():
        server = actual.get(name) if name not in stopped else None
        if server is None:
            yield Accept(name, model)
        if name not in busy and (server is None or server.is_due(now)):
            yield Start(name)
