"""Access control: the checks that come before a request is read."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.config import is_loopback
from ferrule.errors import ConfigError
from ferrule.serve.http.errors import ApiError
from ferrule.units import format_bytes

MAX_HELD_BYTES = 128 * 2**20
"""Bytes of all requests that are being read or answered at once, since every one is in memory until its answer ends."""

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#*@]+")

OPEN_PATHS = frozenset({"/health"})
"""Paths that are open without a key, so that whatever watches the server needs none."""


class Guard:
    """ASGI middleware that refuses strangers, pages of other sites and bodies that are too large.

    Without a key the server listens on loopback only, where a browser still lets any web page send requests. Two
    checks keep those out: the ``Host`` must be a loopback name (a page whose own name was re-pointed to 127.0.0.1
    sends that name), and a body must be declared as JSON (a page may not do that without asking first, which
    is granted to pages of the allowed origins only). Ollama's examples declare none: below its path it is enough
    that no browser asks.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, body_limit: int) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode()
        self._limit = body_limit
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("/api/") and not is_of_browser(Headers(scope=scope)):
            scope = declared_as_json(scope)
        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            await refusal.response(scope["path"])(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            size = len(message.get("body", b""))
            seen, self._held = seen + size, self._held + size
            # Raised as HTTPExceptions, since these are what FastAPI lets pass while it reads a body.
            if seen > self._limit:
                raise HTTPException(413, too_large(self._limit).message)
            if self._held > MAX_HELD_BYTES:
                raise HTTPException(503, "the server holds too many large requests; try again", {"Retry-After": "1"})
            return message

        try:
            await self._app(scope, limited, send)
        finally:
            self._held -= seen

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        if self._key is None and not is_loopback_name(headers.get("host", "")):
            return ApiError(
                403,
                f"requests to {headers.get('host')!r} are refused: without an API key only loopback names are "
                "answered; start the server with --api-key",
                code="host_not_allowed",
            )
        if self._key is not None and scope["path"] not in OPEN_PATHS and not has_key(headers, self._key):
            return ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        if scope["method"] == "POST" and not is_json(headers.get("content-type", "")):
            return ApiError(
                415, "the body must be JSON; send the header 'Content-Type: application/json'", code="not_json"
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limit:
            return too_large(self._limit)
        return None


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {format_bytes(limit)}", code="request_too_large")


def has_key(headers: Headers, key: bytes) -> bool:
    """Whether ``headers`` carry ``key``, as OpenAI's clients send it or as Anthropic's, compared in constant time."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    # Header values arrive decoded as latin-1; back to the bytes that were sent.
    bearer = hmac.compare_digest(given.strip().encode("latin-1"), key) and scheme.lower() == "bearer"
    return hmac.compare_digest(headers.get("x-api-key", "").strip().encode("latin-1"), key) or bearer


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


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
