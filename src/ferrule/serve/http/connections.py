"""HTTP connections that cannot exhaust the server: a deadline for each part of a request, and a limit on their number.

uvicorn itself only bounds how long a connection may idle between requests. Here every other wait for the client has a
deadline, too. At the limit the connection that has waited longest without a complete request makes room for a new one,
so that idle connections never keep out one that asks something. With TLS its handshake counts as part of the header.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from itertools import islice
from typing import TYPE_CHECKING, Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ferrule.secure.vanished import end_when_vanished
from ferrule.serve.http.errors import ApiError

if TYPE_CHECKING:
    from ferrule.serve.http.tls import ServerTls

log = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""From the opening of a connection, or the end of the last response, to the end of a request's header."""

BODY_SECONDS = 60.0
"""From the end of a request's header to the end of its body: 8 MiB at 1.2 Mb/s."""

SEND_SECONDS = 60.0
"""Seconds that a client may leave a response unread while more than a socket's buffer of it is waiting."""

VANISHED_SECONDS = 60
"""Seconds without a sign of life of a client's host, such as one without power, after which its connection ends, and
with that what is computed for it."""

STREAMS_END_SECONDS = 0.3
"""Time limit for open connections to notice that the server stops, before they are cut."""

GOODBYE_SECONDS = 1.0
"""Time limit for a client to say that it has heard that its TLS connection ends."""

SEND_BUFFER_BYTES = 1 << 16
"""Of a response that TLS keeps ready: as much as asyncio keeps of a plain one."""

MOST_CONNECTIONS = 1024

AT_ONCE = 16
"""Connections that are accepted, or ended because they are late, in a round of the event loop: one takes 0.3 ms, and
600 at once would hold up all others. By so many the limit may be exceeded."""

QUEUED = 1024
"""Connections that the system keeps until they are accepted."""

RESERVED_FILES = 256
"""Descriptors that are kept for other things than connections: the ranks' sockets, files, logs."""

MOST_FILES = 1 << 16
"""The descriptor limit is not raised further: child processes inherit it, and some walk through all of them."""


def connection_limit() -> int:
    """Raise this process's limit on open files as far as it may, and return how many connections fit below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:  # macOS allows less than it claims
            log.debug("the limit on open files stays at %d: %s", soft, error)
    fit = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - RESERVED_FILES
    return max(1, min(MOST_CONNECTIONS, fit))


class HttpConfig(uvicorn.Config):
    """uvicorn's settings with bounded connections. ``most``: how many may be open. Times are in seconds.

    TLS is begun by each `Connection`, since uvicorn would neither count connections before their handshake is done
    nor limit its time.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tls: ServerTls | None = None,
        most: int = MOST_CONNECTIONS,
        head: float = HEAD_SECONDS,
        body: float = BODY_SECONDS,
        send: float = SEND_SECONDS,
        vanished: int = VANISHED_SECONDS,
    ) -> None:
        super().__init__(
            app,
            http=Connection,
            backlog=AT_ONCE,  # as many does asyncio accept at once
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=STREAMS_END_SECONDS,  # type: ignore[arg-type]  # any number of seconds will do
        )
        self.tls, self.most, self.head, self.body, self.send, self.vanished = tls, most, head, body, send, vanished
        self.waiting: dict[Connection, None] = {}
        """Connections without a complete request, in the order in which they began to wait."""
        self.late: dict[Connection, None] = {}
        """Those of them whose deadline is over, in its order, until they are ended or go on after all."""


class Connection(H11Protocol):
    """One client's connection. What it waits for is h11's state of the client: IDLE is a header, SEND_BODY a body."""

    def __init__(self, config: HttpConfig, *others: Any, **named: Any) -> None:
        super().__init__(config, *others, **named)
        self._limits = config
        self._phase: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        """Data that came in one flight with the end of the TLS handshake."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        end_when_vanished(transport.get_extra_info("socket"), self._limits.vanished)
        full = len(self.connections) > self._limits.most and not self._make_room()
        if self._limits.tls is not None:
            if full:
                transport.abort()
                return
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._secure(transport, self._limits.tls.context()))
        if full:
            self._end(ApiError(503, "the server has too many open connections", code="busy", retry_after=1))
        else:
            self._follow()

    async def _secure(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Replace the transport by one with TLS. Its deadline is the one of the header."""
        try:
            found = await self.loop.start_tls(
                plain, self, context, server_side=True, ssl_shutdown_timeout=GOODBYE_SECONDS
            )
        except OSError as error:  # also of TLS
            if getattr(error, "reason", None) == "HTTP_REQUEST":
                log.warning("a client spoke plain HTTP, but this server speaks https")
            found = None
        self._handshake = None
        if found is None:  # also where it was closed here meanwhile
            self.connection_lost(None)
            return
        secured: asyncio.Transport = found
        secured.set_write_buffer_limits(SEND_BUFFER_BYTES)
        super().connection_made(secured)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._handshake is not None:
            self._early += data
            return
        super().data_received(data)
        self._follow()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or has more than h11's 64 KiB of headers."""
        self._end(ApiError(400, "this is no HTTP request, or its headers are too large", code="not_http"))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_deadline = self.loop.call_later(self._limits.send, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_send_deadline()
        self._wait_for(None)
        super().connection_lost(exc)

    def _follow(self) -> None:
        """Begin another deadline where the client has come to another part of its request."""
        phase: Any = self.conn.their_state
        if self.transport.is_closing() or phase not in (h11.IDLE, h11.SEND_BODY):
            phase = None
        if phase is not self._phase:
            self._wait_for(phase)

    def _wait_for(self, phase: Any) -> None:
        self._phase = phase
        self._limits.waiting.pop(self, None)
        self._limits.late.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is not None:
            self._limits.waiting[self] = None
            seconds = self._limits.head if phase is h11.IDLE else self._limits.body
            self._deadline = self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        """End this connection, if not too many others are late at this moment."""
        self._limits.late[self] = None
        if len(self._limits.late) == 1:
            self.loop.call_soon(_end_late, self._limits, self.loop)

    def end_late(self) -> None:
        """Tell the client that its time is over, where it has begun to ask."""
        seconds = self._limits.head if self._phase is h11.IDLE else self._limits.body
        asked = self._phase is h11.SEND_BODY or self.conn.trailing_data[0]
        late = ApiError(408, f"the request was not complete within {seconds:g} s", code="timeout")
        self._end(late if asked else None)

    def _make_room(self) -> bool:
        """End the connection that has waited longest for its request; whether there was one."""
        longest = next(iter(self._limits.waiting), None)
        if longest is not None:
            log.warning("%d connections are open; idle ones are closed for new ones", self._limits.most)
            longest._end(None)
        return longest is not None

    def _end(self, refusal: ApiError | None) -> None:
        """Close the connection, with ``refusal`` where no response has begun."""
        self._wait_for(None)
        if self.transport.get_write_buffer_size():  # closing would wait until the client has read it
            self.transport.abort()
            return
        begun = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if refusal is not None and not begun:
            self.transport.write(_response(refusal))
        self.transport.close()

    def _stop_send_deadline(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None


def _end_late(limits: HttpConfig, loop: asyncio.AbstractEventLoop) -> None:
    for each in list(islice(limits.late, AT_ONCE)):
        each.end_late()
    if limits.late:
        loop.call_soon(_end_late, limits, loop)


def _response(refusal: ApiError) -> bytes:
    body = msgspec.json.encode(refusal.body())
    kept = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {refusal.status} ", *(f"{name}: {value}" for name, value in (kept | refusal.headers).items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
