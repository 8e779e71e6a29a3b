"""Request log: one line of JSON for each request, without anything that its client wrote.

Its path is the one that the application declares (``/v1/models/{name:path}``) and its model's name the server's, so
that no key or text that came in another place than it should gets into the log.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import time
from datetime import UTC, datetime
from logging.handlers import QueueListener, WatchedFileHandler
from pathlib import Path

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.errors import ConfigError
from ferrule.serve.http.exchange import Exchange, exchange_of

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Lines that may wait for a slow disk; those beyond are dropped and counted."""


class RequestLine(msgspec.Struct):
    """``time``: when the request came. ``key``: name of its key. ``status``: 499 where the client left before it had
    one. ``first_token`` and ``seconds``: seconds until the first token, and in all."""

    time: str
    client: str | None
    key: str | None
    method: str
    path: str | None
    model: str | None
    status: int
    prompt_tokens: int
    completion_tokens: int
    first_token: float | None
    seconds: float


class RequestLog:
    """Writes to ``target``, a file that is made for this user alone, or ``-``, the standard output, by a thread of its
    own. A file that is moved away is made anew. Raises `ConfigError` where it cannot be written."""

    def __init__(self, target: str) -> None:
        handler: logging.Handler
        if target == "-":
            handler = logging.StreamHandler(sys.stdout)
        else:
            path = Path(target).expanduser()
            try:
                handler = _PrivateFile(path, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"the request log {path} cannot be written: {error.strerror}") from None
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
        self._handler = handler
        self._writer = QueueListener(self._lines, handler)
        self._writer.start()
        self._dropped = 0

    def around(self, app: ASGIApp) -> ASGIApp:
        """``app``, its requests written down."""

        async def logged(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began, status, exchange = datetime.now(UTC), 0, exchange_of(scope)

            async def noted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                self._write(request_line(scope, exchange, began, status or 499))

        return logged

    def close(self) -> None:
        self._writer.stop()
        self._handler.close()

    def _write(self, line: RequestLine) -> None:
        text = msgspec.json.encode(line).decode()
        record = logging.LogRecord(__name__, logging.INFO, "", 0, text, None, None)
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1
            log.warning("the request log is too slow; lines are dropped: %d so far", self._dropped)


def request_line(scope: Scope, exchange: Exchange, began: datetime, status: int) -> RequestLine:
    client = scope.get("client")
    first = exchange.first_token
    return RequestLine(
        began.isoformat(timespec="milliseconds"),
        None if client is None else client[0],
        exchange.caller.name,
        scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "?",
        declared_path(scope),
        exchange.model,
        status,
        exchange.prompt_tokens,
        exchange.completion_tokens,
        None if first is None else round(first - exchange.begun, 4),
        round(time.monotonic() - exchange.begun, 4),
    )


def declared_path(scope: Scope) -> str | None:
    """Path of the request as the application declares it; None for one that it does not have."""
    found = getattr(scope.get("route"), "path", None)
    if found is None and "app" in scope:  # refused before it was routed
        found = next((route.path for route in scope["app"].routes if getattr(route, "path", "") == scope["path"]), None)
    return found


class _PrivateFile(WatchedFileHandler):
    """A file of this user alone."""

    def _open(self):  # type: ignore[no-untyped-def]  # the stream's type differs among versions
        os.close(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        return super()._open()
