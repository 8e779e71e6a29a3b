"""Models that a cluster should serve, and their state: for the programs of a host."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass

from ferrule.cluster.client import ask_all, ask_here, ask_member
from ferrule.cluster.desired import API_PORT, DesiredModel
from ferrule.cluster.home import DEFAULT_PORT, ClusterHome
from ferrule.cluster.messages import GetDesiredModels, GetModels, GetStatus, WriteModel
from ferrule.cluster.records import Member
from ferrule.cluster.reports import ModelStatus
from ferrule.errors import ClusterError, ConfigError, FerruleError
from ferrule.secure import write_address

_PORTS = 100
_ASK_SECONDS = 3.0
_POLL_SECONDS = 0.2
_STOP_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class ModelRow(ModelStatus):
    """A model of the cluster: its record, and what the host that serves it tells; the ``state`` is ``unknown`` where
    that does not answer. ``on``: that host's name; ``address``: where clients find the model."""

    on: str
    address: str


async def models(home: ClusterHome) -> list[ModelRow]:
    """Of every model that should be up."""
    status = await ask_here(home, GetStatus())
    members = {member.host: member for member in status.hosts}
    wanted = await ask_here(home, GetDesiredModels())

    serving = {model.host for model in wanted.values()}
    up = [member for member in status.hosts if member.is_up and member.host in serving]
    answers = await ask_all(home, up, GetModels(), _ASK_SECONDS)
    found = []
    for name, model in wanted.items():
        member = members.get(model.host)
        on = member.name if member is not None else model.host
        known = next((each for each in answers.get(model.host, ()) if each.name == name), None)
        if known is None:
            known = ModelStatus(name=name, wanted=model, pid=None, state="unknown", detail=f"{on} does not answer")
        told_now = vars(known) | {"wanted": model}
        found.append(ModelRow(**told_now, on=on, address=_address(model, member, own=model.host == status.host)))
    return found


async def want(home: ClusterHome, name: str, model: DesiredModel) -> None:
    """Have a model served. Raises `ClusterError` where there is one of that name."""
    if name in await ask_here(home, GetDesiredModels()):
        raise ClusterError(
            f"there is a model {name!r} already; end it (ferrule stop {name}) or give --name another one"
        )
    await ask_here(home, WriteModel(name, model))


async def unwant(home: ClusterHome, name: str) -> None:
    """Stop serving a model, and wait until it is gone. Raises `ClusterError`."""
    wanted = await ask_here(home, GetDesiredModels())
    if name not in wanted:
        raise ClusterError(f"there is no model {name!r}, only {', '.join(sorted(wanted)) or 'none at all'}")
    await ask_here(home, WriteModel(name, None))
    status = await ask_here(home, GetStatus())
    member = next((each for each in status.hosts if each.host == wanted[name].host), None)
    deadline = time.monotonic() + _STOP_SECONDS
    while member is not None and time.monotonic() < deadline:
        try:
            if all(each.name != name for each in await ask_member(home, member, GetModels(), timeout=_ASK_SECONDS)):
                return
        except FerruleError:  # it will hear of it when it is back
            return
        await asyncio.sleep(_POLL_SECONDS)


async def free_port(home: ClusterHome, listen: str, wanted: int | None) -> int:
    """A port for one more model on this host: ``wanted``, any for 0 and None. Raises `ConfigError` if it is taken."""
    taken = {model.port for model in (await ask_here(home, GetDesiredModels())).values()} | {home.settings.port}
    if wanted:
        if wanted in taken:
            raise ConfigError(f"another model of the cluster has port {wanted}; choose another with --port")
        return wanted
    for port in range(API_PORT, API_PORT + _PORTS):
        if port not in taken and port != DEFAULT_PORT and _can_bind(listen, port):
            return port
    raise ConfigError(f"no port from {API_PORT} on is free; choose one with --port")


def _can_bind(listen: str, port: int) -> bool:
    try:
        socket.create_server((listen, port), family=socket.AF_INET6 if ":" in listen else socket.AF_INET).close()
    except OSError:
        return False
    return True


def _address(model: DesiredModel, member: Member | None, *, own: bool) -> str:
    """Address for clients: a model that listens at all addresses at the first of its host's."""
    listen = model.listen
    if listen in ("0.0.0.0", "::"):
        listen = "127.0.0.1" if own else next(iter(member.addresses), listen) if member is not None else listen
    return f"http{'s' if model.certificate is not None else ''}://{write_address((listen, model.port))}"
