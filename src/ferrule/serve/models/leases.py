"""Leases: what a request uses is not unloaded before its answer has been sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

_OF_REQUEST: ContextVar[ExitStack] = ContextVar("leases")


def until_answered(release: Callable[[], None]) -> None:
    """Call ``release`` when the request that is being handled has been answered, or its client has left."""
    _OF_REQUEST.get().callback(release)


class Leases:
    """ASGI middleware without which `until_answered` cannot be used."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            token = _OF_REQUEST.set(stack)
            try:
                await self._app(scope, receive, send)
            finally:
                _OF_REQUEST.reset(token)
