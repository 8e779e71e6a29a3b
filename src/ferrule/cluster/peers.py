"""An agent's connections to the other hosts of its cluster: one to each, with heartbeats and what is new."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Protocol

from ferrule.cluster import messages
from ferrule.cluster.connection import Connection, connect
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.records import Knowledge, Member, Record
from ferrule.errors import AuthError, ClusterError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.secure import Address, write_address

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
LOST_SECONDS = 2.0
"""Silence after which a host counts as lost. Ranks of a model notice earlier, by the fabric's own heartbeat."""
_DIAL_SECONDS = 3.0
_STAGGER_SECONDS = 0.25
"""Seconds before the next address is tried beside one that has not answered, as RFC 8305 recommends."""
_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
_MAX_REASONS = 8


class OwnHost(Protocol):
    """Interface of this host's `ClusterState` to its connections to others."""

    key: bytes

    @property
    def member(self) -> Member: ...

    @property
    def knowledge(self) -> Knowledge: ...

    def all_records(self) -> tuple[Record, ...]: ...

    def learn(self, records: Sequence[Record]) -> None: ...


class Peer:
    """The connection to one host, whose id may not be known yet (``host`` is None: a place to try, for joining).

    `run` goes on for ever: it dials, sends heartbeats, and dials again. ``up``: it answered within `LOST_SECONDS`.
    """

    def __init__(self, own: OwnHost, addresses: Callable[[], Sequence[Address]], on_change: Callable[[], None]) -> None:
        self._own, self._addresses, self._on_change = own, addresses, on_change
        self._news = asyncio.Event()
        self._answered = asyncio.Event()
        self.saw: dict[str, float] = {}
        """Time at which it last said that it has a connection to a host, by `time.monotonic`."""
        self.up = False
        self.up_since = 0.0
        """Time at which it came up, by `time.monotonic`."""
        self.since = time.monotonic()
        self.heard = 0.0
        """Time of its last answer, by `time.monotonic`; 0: never."""
        self.address: Address | None = None
        self.problem: str | None = None
        """Reason why there is no connection, in words."""
        self.refused = False
        """Whether it answered, the last time, that it will not have us."""
        self.stopping = False
        """Whether it said that it stops on purpose, since it was up the last time."""
        self._stops = False
        self._said_stopping = asyncio.Event()

    def nudge(self) -> None:
        """There is something new to tell."""
        self._news.set()

    async def answers(self, seconds: float) -> bool:
        """Whether it answers now, within ``seconds``."""
        asked = time.monotonic()
        self._answered.clear()
        self._news.set()
        await set_within(self._answered, seconds)
        return self.heard >= asked  # another caller may have cleared the event again

    async def say_stopping(self, seconds: float) -> None:
        """Tell it that this host's agent stops on purpose, so that it does not look lost."""
        self._stops = True
        self._news.set()
        await set_within(self._said_stopping, seconds)

    async def run(self) -> None:
        failures = 0
        while True:
            connection = None
            self.refused = False
            try:
                connection = await self._dial()
                await self._introduce(connection)
                failures = 0
                await self._converse(connection)
            except (ClusterError, AuthError, OSError, TimeoutError) as error:
                self.problem = str(error) or "it did not answer in time"
                self.refused |= isinstance(error, AuthError)
            finally:
                if connection is not None:
                    connection.close()
                self._set(False)
            pause = _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)]
            failures += 1
            self._news.clear()
            await set_within(self._news, pause)  # where it is asked for: at once

    async def _dial(self) -> Connection:
        addresses = list(self._addresses())
        if self.address in addresses:
            addresses.remove(self.address)
            addresses.insert(0, self.address)
        caller = Caller(self._own.member.host, Purpose.PEER)
        connection, self.address = await first_of(addresses, lambda place: connect(place, self._own.key, caller))
        return connection

    async def _introduce(self, connection: Connection) -> None:
        answer = await self._exchange(connection, messages.Introduction(self._own.member, self._own.all_records()))
        if isinstance(answer, messages.Refused):
            self.refused = True
            raise ClusterError(answer.reason)
        self._learn(answer)
        self.problem, self.stopping = None, False
        self._set(True)

    async def _converse(self, connection: Connection) -> None:
        while True:
            heartbeat = messages.Heartbeat(self._own.knowledge.digest, self._stops)
            answer = await self._exchange(connection, heartbeat)
            if not isinstance(answer, messages.HeartbeatAnswer):
                raise _out_of_turn(answer)
            if heartbeat.stopping:
                self._said_stopping.set()
            self.saw.update((host, self.heard) for host in answer.sees)
            if answer.digest != self._own.knowledge.digest:
                self._learn(await self._exchange(connection, messages.Known(self._own.all_records())))
            await set_within(self._news, HEARTBEAT_SECONDS)
            self._news.clear()

    def _learn(self, answer: messages.AnyMessage) -> None:
        if not isinstance(answer, messages.Known):
            raise _out_of_turn(answer)
        self._own.learn(answer.records)

    async def _exchange(self, connection: Connection, message: messages.Message) -> messages.AnyMessage:
        await connection.send(message)
        try:
            answer = await connection.receive(LOST_SECONDS)
        except TimeoutError:
            raise ClusterError(f"it has been silent for {LOST_SECONDS:g} s") from None
        if answer is None:
            raise ClusterError("it closed the connection")
        self.heard = time.monotonic()
        self._answered.set()
        return answer

    def _set(self, up: bool) -> None:
        if self.up != up:
            self.up, self.up_since = up, time.monotonic()
            self._on_change()


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, for ``seconds`` at most; whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def first_of(
    addresses: Sequence[Address], dial: Callable[[Address], Awaitable[Connection]]
) -> tuple[Connection, Address]:
    """The first connection that comes about, the addresses begun one after another.

    Raises `ClusterError` with what each of them answered, the telling ones first, or `AuthError` where one refused
    the key.
    """
    if not addresses:
        raise ClusterError("no address of it is known")
    tasks: dict[asyncio.Task[Connection], Address] = {}
    reasons: list[str] = []
    refusal: AuthError | None = None
    left = list(addresses)
    try:
        async with asyncio.timeout(_DIAL_SECONDS + _STAGGER_SECONDS * len(addresses)):
            while left or tasks:
                if left:
                    place = left.pop(0)
                    tasks[asyncio.ensure_future(dial(place))] = place
                wait = _STAGGER_SECONDS if left else None
                done, _ = await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    place = tasks.pop(task)
                    error = task.exception()
                    if error is None:
                        return task.result(), place
                    reasons.append(_reason(place, error))
                    refusal = error if isinstance(error, AuthError) else refusal
    except TimeoutError:
        reasons += [f"{write_address(place)} did not answer" for place in tasks.values()]
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Connection):
                result.close()
    message = "; ".join(dict.fromkeys(sorted(reasons, key=_dull)[:_MAX_REASONS]))
    raise ClusterError(message) if refusal is None else AuthError(message)


def _reason(place: Address, error: BaseException) -> str:
    if isinstance(error, ClusterError | AuthError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"{write_address(place)} did not answer"
    if isinstance(error, OSError):
        # asyncio puts text and the address of its own into `strerror`.
        return f"{write_address(place)}: {os.strerror(error.errno).lower() if error.errno else error}"
    raise error


def _dull(reason: str) -> bool:
    """An address that leads nowhere says less than one where a program refused."""
    return "did not answer" in reason or "unreachable" in reason or "no route" in reason


def interface_names() -> tuple[str, ...]:
    """Those of this host that have an address."""
    return tuple(dict.fromkeys(face.name for face in own_interfaces()))


def dial_addresses(places: Iterable[Address], interfaces: Sequence[str]) -> list[Address]:
    """``places`` as this host may dial them: a link-local one by way of each of its ``interfaces``."""
    found: list[Address] = []
    for host, port in places:
        link_local = ":" in host and ip_address(host).is_link_local
        found += [(f"{host}%{interface}", port) for interface in interfaces] if link_local else [(host, port)]
    return found


def _out_of_turn(answer: messages.AnyMessage) -> ClusterError:
    return ClusterError(f"it said {type(answer).__name__} out of turn")
