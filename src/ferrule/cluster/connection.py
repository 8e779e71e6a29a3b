"""Connections to and of agents: both ends have proved themselves, and between hosts all that they say is encrypted.

Over a Unix socket, which only this user's programs on this host can open, it is not: there is no cable to read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress
from typing import TypeVar

from ferrule.cluster.handshake import Caller, answer_steps, call_steps
from ferrule.cluster.messages import Answer, AnyMessage, Failure, Message, Question, decode, encode
from ferrule.errors import AuthError, ClusterError
from ferrule.secure import Address, Stranger, write_address
from ferrule.secure.handshake import Exchange
from ferrule.secure.tls import Tls, client_opening, server_opening
from ferrule.secure.vanished import end_when_vanished

A = TypeVar("A")
T = TypeVar("T")

HANDSHAKE_SECONDS = 5.0
VANISHED_SECONDS = 4
SEND_SECONDS = 5.0
"""Time limit for the other end to make room for a frame."""
_MOST_BYTES = 4 << 20
_CHUNK = 1 << 16
_HEAD = struct.Struct("<I")


class Connection:
    """Both ends have proved themselves. One task may send while another receives. ``tls``: None over a Unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: Tls | None) -> None:
        self._reader, self._writer, self._tls = reader, writer, tls
        self._arrived = bytearray()
        self._relay: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Raises `ClusterError` when the other end is gone or does not read."""
        payload = encode(message)
        if len(payload) > _MOST_BYTES:
            raise ClusterError(f"a message of {len(payload):,} bytes is more than agents send")
        try:
            self._write(_HEAD.pack(len(payload)) + payload)
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"the connection broke: {error or 'the other end does not read it'}") from error

    async def receive(self, timeout: float | None = None) -> AnyMessage | None:
        """The next message; None at the end. Raises `TimeoutError`, after which the message can still be received,
        `AuthError` where it was altered, and `ClusterError` for what no program of ours says."""
        try:
            async with asyncio.timeout(timeout):
                while (payload := self._next_payload()) is None:
                    data = await self._read()
                    if not data:
                        return None
                    self._arrived += data
        except ConnectionError:
            return None
        return decode(payload)

    async def ask(self, question: Question[A], timeout: float) -> A:
        """Send, and wait for the answer. Raises `ClusterError` with what it says is wrong, and `TimeoutError`."""
        await self.send(question)
        match await self.receive(timeout):
            case Answer(value=value):
                return question.answer_from(value)
            case Failure(error=error):
                raise ClusterError(error)
            case None:
                raise ClusterError("the agent closed the connection")
            case other:
                raise ClusterError(f"the agent answered a question by {type(other).__name__}")

    def pause(self) -> None:
        """Leave in the socket what comes from now on, for the process that gets it by `detach`."""
        if self._tls is None:
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def detach(self) -> socket.socket:
        """A socket on which the other end speaks, for another process; nothing is sent or read here any more.

        `pause` before the other end may send what is not meant for us. It is the connection's own socket; where that is
        encrypted it is one end of a pair, and this process goes on to carry bytes between pair and connection until
        either of them ends. Raises `ClusterError` where the other end does not take what was sent.
        """
        transport = self._writer.transport
        deadline = asyncio.get_running_loop().time() + SEND_SECONDS
        while transport.get_write_buffer_size():
            if asyncio.get_running_loop().time() > deadline or transport.is_closing():
                raise ClusterError("the connection broke")
            await asyncio.sleep(0.001)
        if self._tls is None:
            taken = socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno()))
            transport.abort()
            return taken
        ours, taken = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            taken.close()
            raise
        self._relay = asyncio.create_task(self.carry(reader, writer), name="relay")
        _relays.add(self._relay)
        self._relay.add_done_callback(_relays.discard)
        return taken

    def close(self) -> None:
        """Not of a connection that was detached, which ends with what has it."""
        if self._relay is None:
            self._writer.transport.abort() if self._writer.is_closing() else self._writer.close()

    @property
    def local_address(self) -> str:
        """The address of this end; empty for a Unix socket."""
        return self._address("sockname")

    @property
    def peer_address(self) -> str:
        return self._address("peername")

    def _address(self, end: str) -> str:
        name = self._writer.get_extra_info(end)
        return str(name[0]) if isinstance(name, tuple) else ""

    def _write(self, data: bytes) -> None:
        self._writer.write(data if self._tls is None else self._tls.encrypt(data))

    async def _read(self) -> bytes:
        """Some bytes of what the other end said; none at the end. Loses nothing where it is cancelled."""
        while data := await self._reader.read(_CHUNK):
            if self._tls is None:
                return data
            if found := self._tls.decrypt(data):
                return found
        return b""

    def _next_payload(self) -> bytes | None:
        if len(self._arrived) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._arrived)
        if length > _MOST_BYTES:
            raise ClusterError(f"a message of {length:,} bytes is more than agents send")
        end = _HEAD.size + length
        if len(self._arrived) < end:
            return None
        payload = bytes(self._arrived[_HEAD.size : end])
        del self._arrived[:end]
        return payload

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes from ``reader`` to the other end, and what that says to ``writer``, until one of them ends."""

        async def inwards() -> None:
            data = bytes(self._arrived)
            while data or (data := await self._read()):
                writer.write(data)
                await writer.drain()
                data = b""

        async def outwards() -> None:
            while data := await reader.read(_CHUNK):
                self._write(data)
                await self._writer.drain()

        directions = [asyncio.create_task(carry()) for carry in (inwards, outwards)]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()
            for result in await asyncio.gather(*directions, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError | AuthError):
                    raise result
            writer.close()
            self._writer.close()


_relays: set[asyncio.Task[None]] = set()
"""The event loop itself holds tasks only weakly."""


async def connect(
    place: Address | str, key: bytes, caller: Caller, *, timeout: float = HANDSHAKE_SECONDS
) -> Connection:
    """To the agent at an address, or at a Unix socket's path.

    Raises `ClusterError` or `AuthError` with what is wrong, `TimeoutError`, and `OSError` where nothing listens.
    """
    where = place if isinstance(place, str) else write_address(place)
    async with asyncio.timeout(timeout):
        if isinstance(place, str):
            reader, writer = await asyncio.open_unix_connection(place)
        else:
            reader, writer = await asyncio.open_connection(*place)
        try:
            opening = None if isinstance(place, str) else client_opening
            line = await drive(call_steps(key, caller, where, opening), reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()
            raise ClusterError(f"what answers at {where} hung up; is it a Ferrule agent?") from None
        except BaseException:
            writer.close()
            raise
    _as_agents_want(writer)
    return Connection(reader, writer, line if isinstance(line, Tls) else None)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
) -> tuple[Connection, Caller] | None:
    """The agent's side: None for a stranger that does not prove itself within `HANDSHAKE_SECONDS`; it is hung up on."""
    opening = None if _is_local(writer) else server_opening()
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            try:
                caller, line = await drive(answer_steps(key, opening), reader, writer)
                _as_agents_want(writer)
                return Connection(reader, writer, line if isinstance(line, Tls) else None), caller
            except (Stranger, AuthError):
                await writer.drain()  # the refusal, where it is owed one
    except (asyncio.IncompleteReadError, OSError, TimeoutError):
        pass
    with suppress(OSError):
        writer.close()
    return None


async def drive(steps: Exchange[T], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> T:
    """Take the steps of a handshake. Raises what they raise, and `asyncio.IncompleteReadError`."""
    answer: bytes | None = None
    while True:
        try:
            want = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(want, int):
            answer = await reader.readexactly(want)
        else:
            writer.write(want)
            answer = b""


def _is_local(writer: asyncio.StreamWriter) -> bool:
    family: int = writer.get_extra_info("socket").family
    return family == socket.AF_UNIX


def _as_agents_want(writer: asyncio.StreamWriter) -> None:
    """No waiting for more to send; and a connection ends soon after the other host is gone or the cable is cut."""
    if _is_local(writer):
        return
    underlying = writer.get_extra_info("socket")
    underlying.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_when_vanished(underlying, VANISHED_SECONDS)
