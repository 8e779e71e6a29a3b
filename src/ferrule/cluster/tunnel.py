"""Tunnel for programs whose own protocol proves nothing: their bytes go between two hosts through TLS 1.3, once both
ends have proved that they hold a key (`ferrule.secure.handshake`).

The near end listens on its host's loopback, as the program would that is led to; the far end listens to other hosts,
and joins who proves itself to the program, which listens on loopback only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ferrule.cluster.connection import HANDSHAKE_SECONDS, VANISHED_SECONDS, Connection, drive
from ferrule.errors import AuthError, ClusterError
from ferrule.secure import Address, Status, Stranger, write_address
from ferrule.secure.handshake import (
    Exchange,
    Line,
    Reply,
    Wire,
    WrongKey,
    challenge_steps,
    client_steps,
    hear_hello,
)
from ferrule.secure.tls import Tls, client_opening, server_opening
from ferrule.secure.vanished import end_when_vanished

WIRE = Wire(b"FERRULET", number=1, label=b"ferrule tunnel ", fields="", text_bytes=64)
MOST_STRANGERS = 64
"""Connections that have not proved themselves; more are hung up on."""
LOOPBACK = "127.0.0.1"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def far_end(key: bytes, place: Address, program: Address) -> asyncio.Server:
    """Listen at ``place`` (port 0: a free one), and join who proves the key to ``program``. Raises `OSError`."""
    strangers = 0

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal strangers
        line: Tls | None = None
        if strangers < MOST_STRANGERS:
            strangers += 1
            line = await _let_in(key, reader, writer)
            strangers -= 1
        if line is None:
            writer.close()
            return
        await _join(Connection(reader, writer, line), writer, lambda: asyncio.open_connection(*program))

    return await asyncio.start_server(_quiet(heard), *place)


async def near_end(key: bytes, far: Address) -> asyncio.Server:
    """Listen on a free port of loopback, and lead who connects to the far end at ``far``. Raises `OSError`."""

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await led_to(key, far)
        except (ClusterError, AuthError, OSError, TimeoutError):
            writer.close()  # the program sees that nobody answers
            raise
        await _carry(line, reader, writer)

    return await asyncio.start_server(_quiet(heard), LOOPBACK, 0)


async def led_to(key: bytes, far: Address) -> Connection:
    """A connection to what the far end at ``far`` leads to. Raises `AuthError` where it does not prove the key or
    refuses ours, `ClusterError` where it is none, `OSError` and `TimeoutError`."""
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(*far)
        try:
            line = await drive(_call(key, write_address(far)), reader, writer)
            assert isinstance(line, Tls)
        except asyncio.IncompleteReadError:
            writer.close()
            raise ClusterError(f"what answers at {write_address(far)} hung up") from None
        except BaseException:
            writer.close()
            raise
    _settle(writer)
    return Connection(reader, writer, line)


def _call(key: bytes, where: str) -> Exchange[Line]:
    def check(reply: Reply) -> None:
        if not reply.ours or reply.protocol != WIRE.number:
            raise ClusterError(f"what answers at {where} is no tunnel of this version of Ferrule")
        if reply.status != Status.WELCOME:
            raise AuthError(f"{where} refused the tunnel's key")

    try:
        proof = yield from client_steps(WIRE, key, WIRE.pack_hello(0, encrypt=True), check, client_opening)
    except WrongKey:
        raise AuthError(f"{where} did not prove that it knows the tunnel's key") from None
    return proof.line


def _answer(key: bytes) -> Exchange[Line]:
    hello = yield from hear_hello(WIRE)
    if hello.protocol != WIRE.number or not hello.encrypt:
        yield WIRE.pack_reply(Status.REFUSED)
        raise Stranger
    try:
        proof = yield from challenge_steps(WIRE, key, hello, server_opening())
    except WrongKey:
        raise Stranger from None
    yield from proof.welcome()
    return proof.line


async def _let_in(key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Tls | None:
    """None for who does not prove itself within `HANDSHAKE_SECONDS`."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            try:
                line = await drive(_answer(key), reader, writer)
            except (Stranger, AuthError):
                await writer.drain()  # the refusal, where it is owed one
                return None
    except (asyncio.IncompleteReadError, OSError, TimeoutError):
        return None
    assert isinstance(line, Tls)
    _settle(writer)
    return line


async def _join(line: Connection, outside: asyncio.StreamWriter, to: Callable[[], Awaitable[Streams]]) -> None:
    try:
        reader, writer = await to()
    except OSError:
        outside.close()
        return
    await _carry(line, reader, writer)


async def _carry(line: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await line.carry(reader, writer)


def _settle(writer: asyncio.StreamWriter) -> None:
    """No waiting for more to send, and the end of a connection whose other host is gone."""
    underlying = writer.get_extra_info("socket")
    underlying.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_when_vanished(underlying, VANISHED_SECONDS)


def _quiet(
    heard: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Without a traceback for a connection that ended in the midst of something."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ClusterError, AuthError, TimeoutError):
            await heard(reader, writer)

    return hear
