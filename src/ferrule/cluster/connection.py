"""Authenticated connections to and of agents: JSON objects in frames that carry a MAC."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

from ferrule.cluster.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    AgentSide,
    Caller,
    CallerSide,
    Keys,
    StrangerError,
    seal,
)
from ferrule.cluster.token import Address, write_address
from ferrule.errors import AuthError, ClusterError

Message = dict[str, Any]

HANDSHAKE_SECONDS = 5.0
SEND_SECONDS = 5.0
"""How long the other end may take to make room for a frame."""
_MOST_BYTES = 4 << 20
_HEAD = struct.Struct("<I 32s")


class Connection:
    """Both ends have proved themselves. One task may send while another receives."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, sends: bytes, receives: bytes
    ) -> None:
        self._reader, self._writer = reader, writer
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0

    async def send(self, message: Message) -> None:
        """Raises `ClusterError` when the other end is gone or does not read."""
        payload = json.dumps(message, separators=(",", ":")).encode()
        if len(payload) > _MOST_BYTES:
            raise ClusterError(f"a message of {len(payload):,} bytes is more than agents send")
        try:
            self._writer.write(_HEAD.pack(len(payload), seal(self._sends, self._sent, payload)) + payload)
            self._sent += 1
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"the connection broke: {error or 'nobody reads it'}") from error

    async def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None at the end. Raises `TimeoutError`, and `AuthError` for a frame that was altered."""
        try:
            async with asyncio.timeout(timeout):
                length, mac = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                if length > _MOST_BYTES:
                    raise AuthError("a frame was altered on its way")
                payload = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        if not hmac.compare_digest(mac, seal(self._receives, self._received, payload)):
            raise AuthError("a frame was altered on its way")
        self._received += 1
        message = json.loads(payload)
        if not isinstance(message, dict):
            raise ClusterError("a message is no object")
        return message

    async def ask(self, message: Message, timeout: float) -> Message:
        """Send, and wait for the answer. Raises `ClusterError` with what it says is wrong, and `TimeoutError`."""
        await self.send(message)
        answer = await self.receive(timeout)
        if answer is None:
            raise ClusterError("the agent closed the connection")
        if "error" in answer:
            raise ClusterError(str(answer["error"]))
        return answer

    def pause(self) -> None:
        """Leave in the socket what comes from now on, for whoever gets it by `detach`."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def detach(self) -> socket.socket:
        """The socket itself, for another process; nothing is sent or read here any more. `pause` before the other end
        may send what is not meant for us. Raises `ClusterError` where the other end does not take what was sent."""
        transport = self._writer.transport
        deadline = asyncio.get_running_loop().time() + SEND_SECONDS
        while transport.get_write_buffer_size():
            if asyncio.get_running_loop().time() > deadline or transport.is_closing():
                raise ClusterError("the connection broke")
            await asyncio.sleep(0.001)
        taken = socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno()))
        transport.abort()
        return taken

    def close(self) -> None:
        self._writer.transport.abort() if self._writer.is_closing() else self._writer.close()

    @property
    def local_address(self) -> str:
        """The address of this end; empty for a Unix socket."""
        name = self._writer.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def peer_address(self) -> str:
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""


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
            side = CallerSide(key, caller, where)
            writer.write(side.hello)
            writer.write(side.prove(await reader.readexactly(REPLY_BYTES)))
            keys = side.finish(await reader.readexactly(REPLY_BYTES))
        except asyncio.IncompleteReadError:
            writer.close()
            raise ClusterError(f"what answers at {where} hung up; is it a Ferrule agent?") from None
        except BaseException:
            writer.close()
            raise
    _as_agents_want(writer)
    return Connection(reader, writer, sends=keys.from_caller, receives=keys.from_agent)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
) -> tuple[Connection, Caller] | None:
    """The agent's side: None for whoever does not prove itself within `HANDSHAKE_SECONDS`; it is hung up on."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            side = AgentSide(key)
            answer, go_on = side.challenge(await reader.readexactly(HELLO_BYTES))
            writer.write(answer)
            if go_on:
                answer, caller, keys = side.judge(await reader.readexactly(PROOF_BYTES))
                writer.write(answer)
                if caller is not None and keys is not None:
                    _as_agents_want(writer)
                    return _agents_end(reader, writer, keys), caller
            await writer.drain()
    except (StrangerError, asyncio.IncompleteReadError, OSError, TimeoutError):
        pass  # nobody that an answer is owed to
    with suppress(OSError):
        writer.close()
    return None


def _agents_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: Keys) -> Connection:
    return Connection(reader, writer, sends=keys.from_agent, receives=keys.from_caller)


def _as_agents_want(writer: asyncio.StreamWriter) -> None:
    """No waiting for more to send; and a connection ends soon after the other host is gone or the cable is cut."""
    underlying = writer.get_extra_info("socket")
    if underlying.family == socket.AF_UNIX:
        return
    underlying.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    underlying.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = [("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 4000)]
    for name, value in [("TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE", 1), *options]:
        if hasattr(socket, name):
            underlying.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
