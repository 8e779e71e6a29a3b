"""Which models a cluster should serve, and how they are: for the programs of a host."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import Any

from ferrule.cluster.client import ask_here, ask_member
from ferrule.cluster.home import DEFAULT_PORT, ClusterHome
from ferrule.cluster.records import MODEL, Member
from ferrule.errors import ClusterError, ConfigError, FerruleError

FIRST_PORT = 8420
_PORTS = 100
_ASK_SECONDS = 3.0
_POLL_SECONDS = 0.2
_STOP_SECONDS = 15.0


async def models(home: ClusterHome) -> list[dict[str, Any]]:
    """Of every model that should be up: ``name``, ``wanted`` (its record), ``on`` (the name of the host that serves
    it), and what that host tells of it; ``state`` is ``unknown`` where it does not answer."""
    status = await ask_here(home, "status")
    members = {fields["host"]: (Member.of_status(fields), fields["state"]) for fields in status["hosts"]}
    wanted: Mapping[str, Mapping[str, Any]] = await ask_here(home, "wanted")

    async def told(host: str) -> dict[str, Mapping[str, Any]]:
        member, state = members.get(host, (None, "lost"))
        if member is None or state == "lost":
            return {}
        try:
            return {each["name"]: each for each in await ask_member(home, member, "models", timeout=_ASK_SECONDS)}
        except FerruleError:
            return {}

    hosts = sorted({str(value.get("host")) for value in wanted.values()})
    answers = dict(zip(hosts, await asyncio.gather(*map(told, hosts)), strict=True))
    found = []
    for name, value in wanted.items():
        host = str(value.get("host"))
        member = members[host][0] if host in members else None
        row: dict[str, Any] = {"name": name, "wanted": value, "on": member.name if member is not None else host}
        row["address"] = _address(value, member, own=host == status["host"])
        row |= answers[host].get(name, {"state": "unknown", "detail": f"{row['on']} does not answer"})
        found.append(row)
    return found


async def want(home: ClusterHome, name: str, value: Mapping[str, Any]) -> None:
    """Have a model served, by this host at first. Raises `ClusterError` where there is one of that name."""
    if name in await ask_here(home, "wanted"):
        raise ClusterError(
            f"there is a model {name!r} already; end it (ferrule stop {name}) or give --name another one"
        )
    host = home.settings.host
    await ask_here(home, "write", kind=MODEL, name=name, value={**value, "host": host, "owner": host})


async def unwant(home: ClusterHome, name: str) -> None:
    """Stop serving a model, and wait until it is gone. Raises `ClusterError`."""
    wanted = await ask_here(home, "wanted")
    if name not in wanted:
        raise ClusterError(f"there is no model {name!r}, only {', '.join(sorted(wanted)) or 'none at all'}")
    host = wanted[name].get("host")
    await ask_here(home, "write", kind=MODEL, name=name, value=None)
    status = await ask_here(home, "status")
    member = next((Member.of_status(each) for each in status["hosts"] if each["host"] == host), None)
    deadline = time.monotonic() + _STOP_SECONDS
    while member is not None and time.monotonic() < deadline:
        try:
            if all(each["name"] != name for each in await ask_member(home, member, "models", timeout=_ASK_SECONDS)):
                return
        except FerruleError:  # it will hear of it when it is back
            return
        await asyncio.sleep(_POLL_SECONDS)


async def free_port(home: ClusterHome, listen: str, wanted: int | None) -> int:
    """A port for one more model on this host: ``wanted``, any for 0 and None. Raises `ConfigError` if it is taken."""
    taken = {value.get("port") for value in (await ask_here(home, "wanted")).values()} | {home.settings.port}
    if wanted:
        if wanted in taken:
            raise ConfigError(f"another model of the cluster has port {wanted}; choose another with --port")
        return wanted
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS):
        if port not in taken and port != DEFAULT_PORT and _can_bind(listen, port):
            return port
    raise ConfigError(f"no port from {FIRST_PORT} on is free; choose one with --port")


def _can_bind(listen: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen, port))
        except OSError:
            return False
    return True


def _address(wanted: Mapping[str, Any], member: Member | None, *, own: bool) -> str:
    """Where clients find it: a model that listens at all addresses at the first of its host's."""
    listen, port = str(wanted.get("listen") or "127.0.0.1"), wanted.get("port")
    if listen in ("0.0.0.0", "::"):
        listen = "127.0.0.1" if own else next(iter(member.addresses), listen) if member is not None else listen
    return f"http://{f'[{listen}]' if ':' in listen else listen}:{port}"
