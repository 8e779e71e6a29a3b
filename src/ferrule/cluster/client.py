"""Client of agents for this host's programs: ask and stop this host's agent, and ask those of other hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import TypeVar

from ferrule.cluster.connection import Connection, connect
from ferrule.cluster.discovery import Discovery, Heard, installed
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetStatus, Leave, Question, StopAgent
from ferrule.cluster.peers import dial_addresses, first_of, interface_names
from ferrule.cluster.records import Knowledge, Member
from ferrule.cluster.reports import ClusterStatus
from ferrule.cluster.store import Store
from ferrule.errors import AuthError, ClusterError, FerruleError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.secure import JoinToken, write_address

A = TypeVar("A")
JOIN_SECONDS = 15.0
ASK_SECONDS = 10.0
STOP_SECONDS = 10.0
LISTEN_SECONDS = 1.5
"""Seconds of listening for clusters by mDNS before making a new one."""
_POLL_SECONDS = 0.1


def stop_agent(home: ClusterHome) -> bool:
    """Stop this host's agent and all that it runs; False where none ran. Raises `ClusterError`."""
    if not home.is_running():
        return False
    ask(home, StopAgent())
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        if not home.is_running():
            return True
        time.sleep(_POLL_SECONDS / 4)
    raise ClusterError(f"the agent does not stop; see {home.log}")


def ask(home: ClusterHome, question: Question[A], *, timeout: float = ASK_SECONDS) -> A:
    """Ask this host's agent. Raises `ClusterError` with what it answers, or that it does not."""
    return asyncio.run(ask_here(home, question, timeout=timeout))


async def ask_here(home: ClusterHome, question: Question[A], *, timeout: float = ASK_SECONDS) -> A:
    """`ask` for programs with an event loop."""
    if not home.is_running():
        raise ClusterError(f"this host's agent of the cluster {home.name!r} does not run; start it: ferrule up")
    connecting = connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
    return await _ask(connecting, "this host's agent", f"; see {home.log}", question, timeout)


async def ask_member(home: ClusterHome, member: Member, question: Question[A], *, timeout: float = ASK_SECONDS) -> A:
    """Ask the agent of any host of the cluster. Raises `ClusterError`."""
    return await _ask(connect_member(home, member, Purpose.ASK), member.name, "", question, timeout)


async def _ask(connecting: Awaitable[Connection], agent: str, log: str, question: Question[A], timeout: float) -> A:
    try:
        connection = await connecting
        try:
            return await connection.ask(question, timeout)
        finally:
            connection.close()
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"{agent} does not answer ({error or 'in time'}){log}") from error


async def connect_member(home: ClusterHome, member: Member, purpose: Purpose) -> Connection:
    """A connection to the agent of any host of the cluster. Raises `ClusterError`; for this one `OSError`, too."""
    caller = Caller(home.settings.host, purpose)
    if member.host == home.settings.host:
        return await connect(home.socket, home.key, caller)
    try:
        addresses = dial_addresses(member.places, interface_names())
        return (await first_of(addresses, lambda place: connect(place, home.key, caller)))[0]
    except (ClusterError, AuthError) as error:
        raise ClusterError(f"{member.name} cannot be reached: {error}") from None


def remembered(home: ClusterHome) -> Knowledge:
    """State of the cluster as this host's agent knew it when it stopped."""
    store = Store(home.directory / "state.db")
    try:
        return store.load()
    finally:
        store.close()


def say_goodbye(home: ClusterHome) -> list[str]:
    """Take this host out of the cluster while its agent does not run; returns the names of the hosts that were told."""
    own = home.settings.host
    others = {host: member for host, member in remembered(home).members.items() if host != own}
    told = asyncio.run(ask_all(home, others.values(), Leave(own), ASK_SECONDS))
    return [others[host].name for host in told]


async def ask_all(home: ClusterHome, members: Iterable[Member], question: Question[A], timeout: float) -> dict[str, A]:
    """Answers of several hosts' agents, by host id; those that do not answer in time are left out."""
    found: dict[str, A] = {}

    async def one(member: Member) -> None:
        with suppress(FerruleError, TimeoutError):
            async with asyncio.timeout(timeout):
                found[member.host] = await ask_member(home, member, question, timeout=timeout)

    await asyncio.gather(*map(one, members))
    return found


def wait_joined(home: ClusterHome, token: JoinToken) -> ClusterStatus:
    """Wait until the agent has met another host; returns its status. Raises `ClusterError` with why it cannot."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        status = ask(home, GetStatus())
        if any(host.state == "up" for host in status.hosts):
            return status
        tried = all(seed.problem for seed in status.seeds)  # another address may lead to the right host
        refused = [seed.problem for seed in status.seeds if seed.refused and seed.problem]
        if refused and tried:
            raise ClusterError(refused[0])
        if time.monotonic() > deadline:
            raise ClusterError(_why_not_joined(status, token))
        time.sleep(_POLL_SECONDS)


def _why_not_joined(status: ClusterStatus, token: JoinToken) -> str:
    tried = [f"{write_address(seed.place)}: {seed.problem}" for seed in status.seeds if seed.problem]
    told = "; ".join(tried) if tried else "nothing was heard by mDNS and the token names no address"
    return (
        f"no host of the cluster {token.cluster!r} could be reached ({told}); is `ferrule up` running there, and is "
        "the port open? Name an address of it with --address HOST"
    )


def clusters_nearby() -> list[Heard]:
    """The agents that say by mDNS that they are there; none where zeroconf is not installed."""
    if not installed():
        return []
    found: dict[str, Heard] = {}

    async def listen() -> None:
        discovery = Discovery("", "", lambda heard: found.__setitem__(heard.host, heard))
        try:
            await discovery.start(None)
            await asyncio.sleep(LISTEN_SECONDS)
        except OSError:
            return
        finally:
            await discovery.close()

    asyncio.run(listen())
    return list(found.values())


def await_rivals(home: ClusterHome) -> None:
    """Give the agent time to hear of a cluster of the same name that began at the same moment."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < deadline and installed() and not ask(home, GetStatus()).rivals:
        time.sleep(_POLL_SECONDS)


def token_of(home: ClusterHome) -> JoinToken:
    """The join token with this host's addresses."""
    settings = home.settings
    found = [face.address for face in own_interfaces() if not face.ip.is_link_local]
    addresses = [settings.listen] if settings.listen else found
    return JoinToken(home.name, home.key, tuple((address, settings.port) for address in addresses))
