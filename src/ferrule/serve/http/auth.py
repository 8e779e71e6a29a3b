"""Access control: the checks that come before a request is read."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.config import is_loopback
from ferrule.errors import ConfigError
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.exchange import Exchange, exchange_of
from ferrule.serve.http.turns import Turns
from ferrule.serve.keys.keyring import Caller, Keyring
from ferrule.serve.keys.limits import Limiter
from ferrule.units import format_bytes

MAX_HELD_BYTES = 128 * 2**20
"""Bytes of all requests that are being read or answered at once, since every one is in memory until its answer ends."""

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#*@]+")

OPEN_PATHS = frozenset({"/health"})
"""Paths that are open without a key, so that whatever watches the server needs none. Without one they name no models of
several."""

FREE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods whose requests count for no limit: they ask no model."""


BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="

MOST_HEADERS = 100
"""Of a request; browsers behind proxies send some 30."""

MOST_HEADER_BYTES = 32 << 10
"""Of all headers of a request together: as other servers do, with room for large cookies."""


class Guard:
    """ASGI middleware that refuses strangers, pages of other sites, bodies that are too large, and what is beyond the
    limits of a key.

    Without a key the server listens on loopback only, where a browser still lets any web page send requests. Two
    checks keep those out: the ``Host`` must be a loopback name (a page whose own name was re-pointed to 127.0.0.1
    sends that name), and a body must be declared as JSON (a page may not do that without asking first, which
    is granted to pages of the allowed origins only). Ollama's examples declare none: below its path it is enough
    that no browser asks.

    ``body_limit``: bytes of a request; ``image_bytes``: how many of base64's letters it may have beyond that.
    """

    def __init__(self, app: ASGIApp, *, keys: Keyring, body_limit: int, image_bytes: int = 0) -> None:
        self._app = app
        self._keys = keys
        self._limit, self._images = body_limit, image_bytes
        self._held = 0
        self._beginning, self._complete = Turns(), Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "POST":
            await self._beginning.next()
        if scope["path"].startswith("/api/") and not is_of_browser(Headers(scope=scope)):
            scope = declared_as_json(scope)
        exchange = exchange_of(scope)
        try:
            limiter = self._admit(scope, Headers(scope=scope), exchange)
        except ApiError as refusal:
            if exchange.caller.limiter is not None:
                send = _with_limits(send, exchange.caller.limiter)
            await refusal.response(scope["path"])(scope, receive, send)
            return
        if exchange.caller.limiter is not None:
            send = _with_limits(send, exchange.caller.limiter)
        seen = plain = 0

        async def limited() -> Message:
            nonlocal seen, plain
            message = await receive()
            body = message.get("body", b"")
            size = len(body)
            seen, self._held = seen + size, self._held + size
            plain += beside_base64(body) if self._images else size
            # Raised as HTTPExceptions, since these are what FastAPI lets pass while it reads a body.
            if seen > self._limit + self._images:
                raise HTTPException(413, too_large(self._limit + self._images).message)
            if plain > self._limit:
                raise HTTPException(413, f"the body has more than {format_bytes(self._limit)} beside images")
            if self._held > MAX_HELD_BYTES:
                raise HTTPException(503, "the server holds too many large requests; try again", {"Retry-After": "1"})
            if message["type"] == "http.request" and not message.get("more_body") and scope["method"] == "POST":
                await self._complete.next()
            return message

        try:
            await self._app(scope, limited, send)
        finally:
            self._held -= seen
            if limiter is not None:
                limiter.end()

    def _admit(self, scope: Scope, headers: Headers, exchange: Exchange) -> Limiter | None:
        """Check who asks and what, before it is read: sets the ``exchange``'s caller, and returns what is to be told of
        the request's end. Raises `ApiError` where it is refused."""
        if len(scope["headers"]) > MOST_HEADERS or sum(map(len, sum(scope["headers"], ()))) > MOST_HEADER_BYTES:
            raise ApiError(
                431,
                f"the request has more than {MOST_HEADERS} headers or {format_bytes(MOST_HEADER_BYTES)} of them",
                code="headers_too_large",
            )
        if not self._keys.keyed and not is_loopback_name(headers.get("host", "")):
            raise ApiError(
                403,
                f"requests to {headers.get('host')!r} are refused: without an API key only loopback names are "
                "answered; start the server with --api-key",
                code="host_not_allowed",
            )
        try:
            exchange.caller = self._keys.caller(headers)
        except ApiError:
            if scope["path"] not in OPEN_PATHS:
                raise
            exchange.caller = Caller(models=())
        if scope["method"] == "POST" and not is_json(headers.get("content-type", "")) and is_taken(scope):
            raise ApiError(
                415, "the body must be JSON; send the header 'Content-Type: application/json'", code="not_json"
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limit + self._images:
            raise too_large(self._limit + self._images)
        return None if scope["method"] in FREE_METHODS else _begun(exchange.caller)


def _begun(caller: Caller) -> Limiter | None:
    """The limiter of ``caller``, with one more request. Raises `ApiError` 429 at its limit."""
    limiter = caller.limiter
    refusal = None if limiter is None else limiter.begin(time.monotonic())
    if refusal is not None:
        wait = math.ceil(refusal.seconds)
        raise ApiError(
            429, f"{refusal.message}; try again in {wait} s", code="rate_limit_exceeded", retry_after=max(1, wait)
        )
    return limiter


def _with_limits(send: Send, limiter: Limiter) -> Send:
    """``send``, with the headers of ``limiter`` on the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(limiter.headers(time.monotonic()))
        await send(message)

    return sending


def beside_base64(body: bytes) -> int:
    """Bytes of ``body`` that are no letters of base64: every value of JSON but the first has one before it."""
    return len(body.translate(None, BASE64))


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {format_bytes(limit)}", code="request_too_large")


def is_loopback_name(host: str) -> bool:
    """Whether a ``Host`` header (with or without port) names this machine to itself."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().rstrip(".")
    return name.endswith(".localhost") or is_loopback(name)


def check_origins(origins: Sequence[str], *, keyed: bool) -> None:
    """Raise `ConfigError` for what no browser sends as a page's origin, and for all pages where none needs a key."""
    for origin in origins:
        if origin == "*":
            if not keyed:
                raise ConfigError("--allow-origin '*' lets every web page use the model: set FERRULE_API_KEY, too")
        elif not ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--allow-origin {origin}: an origin is a scheme, a host and perhaps a port, such as "
                "https://chat.example or http://localhost:3000, without a path"
            )


def is_of_browser(headers: Headers) -> bool:
    """Whether a page may have sent the request: browsers tell its origin with every POST (Fetch, 3.1), and by
    ``Sec-Fetch-Site`` whether it is of another site; a page can keep neither back."""
    return "origin" in headers or "sec-fetch-site" in headers


def declared_as_json(scope: Scope) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


def is_taken(scope: Scope) -> bool:
    """Whether the application has the request's path with its method: else it answers 404 or 405 by itself."""
    return any(route.matches(scope)[0] is Match.FULL for route in scope["app"].routes)


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
