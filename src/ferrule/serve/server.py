"""Load, serve, stop: the life of a server process."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ferrule.engine import Engine
from ferrule.model import Hub
from ferrule.serve.app import create_app
from ferrule.serve.collector import collect_when_idle, spare_requests
from ferrule.serve.http import connections
from ferrule.serve.http.connections import QUEUED, HttpConfig, connection_limit
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.logs import RepeatFilter
from ferrule.serve.http.request_log import RequestLog
from ferrule.serve.http.tls import ServerTls
from ferrule.serve.images.fetch import Fetcher
from ferrule.serve.models import Aliases
from ferrule.serve.models.many import ManyModels
from ferrule.serve.tools.families import AUTO

Served = TypeVar("Served", Engine, ManyModels)

log = logging.getLogger(__name__)

ENGINE_CLOSE_SECONDS = 5.0
"""An engine closes within about a second; one that needs this long is given up."""

HEALTH_SECONDS = 0.5
"""Seconds between two looks at the engine's health, to log a failure that no request runs into."""


class Gate:
    """ASGI gate that clients meet before the model is loaded: status 503. Afterwards the application itself."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope.get("path") == "/health":
            await JSONResponse({"status": "loading"}, 503)(scope, receive, send)
        else:
            busy = ApiError(503, "the model is still loading; try again soon", code="not_ready", retry_after=2)
            await busy.response(scope["path"])(scope, receive, send)


class Server(uvicorn.Server):
    """uvicorn, but the signals are handled by `serve`, which has more to stop than connections, and more connections
    may wait to be accepted than are accepted at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(QUEUED)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    start: Callable[[], Awaitable[Served]],
    listener: socket.socket,
    *,
    api_key: str | None,
    keys: Path | None = None,
    requests: RequestLog | None = None,
    tls: ServerTls | None = None,
    origins: Sequence[str] = (),
    image_urls: bool = False,
    share_downloads: bool = False,
    max_queue_seconds: float | None = None,
    tool_parser: str = AUTO,
    aliases: Aliases | None = None,
    on_ready: Callable[[Served], None],
) -> None:
    """Start an engine, or several models, and serve on ``listener`` until SIGINT or SIGTERM; returns when everything is
    closed.

    ``requests``: where each request is written down. ``tls``: None for plain HTTP.
    ``image_urls``: images of requests are fetched by https. ``share_downloads``: other hosts may have models that this
    one has downloaded. Others: as `create_app` takes them.
    While ``start`` runs, clients get status 503. ``on_ready`` is called once requests are answered. When the engine
    fails for good the server stays, and says so at ``/health``. Raises what ``start`` raises.
    """
    stop = asyncio.Event()
    gate = Gate()
    app = gate if requests is None else requests.around(gate)
    server = Server(HttpConfig(app, tls=tls, most=connection_limit()))
    with _stopped_by_signals(stop), _readable_log():
        http = asyncio.create_task(server.serve(sockets=[listener]))
        engine: Served | None = None
        try:
            engine = await _unless(stop, start())
            if engine is not None:
                gate.app = served = create_app(
                    engine,
                    api_key=api_key,
                    keys=keys,
                    origins=origins,
                    max_queue_seconds=max_queue_seconds,
                    tool_parser=tool_parser,
                    aliases=aliases,
                    fetcher=Fetcher() if image_urls else None,
                    shared=Hub.from_environment() if share_downloads else None,
                )
                spare_requests()
                on_ready(engine)
                with _collecting(engine):
                    await _watch(engine, stop)
                served.state.models.close()
        finally:
            server.should_exit = True
            await asyncio.gather(http, _close(engine))
            if requests is not None:
                requests.close()


@contextmanager
def _collecting(engine: Engine | ManyModels) -> Iterator[None]:
    """Collect garbage in moments in which no model has a request."""

    def idle() -> bool:
        running = [each for _, each in engine.states()] if isinstance(engine, ManyModels) else [engine]
        return not any(health.running or health.waiting for health in (each.health() for each in running))

    task = asyncio.create_task(collect_when_idle(idle))
    try:
        yield
    finally:
        task.cancel()


async def _unless(stop: asyncio.Event, starting: Awaitable[Served]) -> Served | None:
    """What was started, or None when ``stop`` came first."""
    task = asyncio.ensure_future(starting)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=ENGINE_CLOSE_SECONDS)
            if task.done() and not task.cancelled() and task.exception() is None:
                await _close(task.result())  # it was ready in the very moment


async def _watch(engine: Engine | ManyModels, stop: asyncio.Event) -> None:
    """Wait for ``stop``; log once if the only engine fails meanwhile: one of several is started again."""
    while not isinstance(engine, ManyModels) and not stop.is_set() and engine.health().state != "failed":
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), HEALTH_SECONDS)
    if not stop.is_set() and not isinstance(engine, ManyModels):
        log.error("the model has failed; requests get status 503 until a restart: %s", engine.health().error)
    await stop.wait()


async def _close(engine: Engine | ManyModels | None) -> None:
    if engine is None:
        return
    closing = engine.aclose() if isinstance(engine, ManyModels) else engine.close()
    try:
        await asyncio.wait_for(closing, ENGINE_CLOSE_SECONDS + 1)
    except TimeoutError:
        log.error("the engine did not close within %s s; processes of it may be left", ENGINE_CLOSE_SECONDS)


@contextmanager
def _readable_log() -> Iterator[None]:
    """Log once in a minute what clients or a lack of descriptors can cause a thousand times in a second."""
    once = RepeatFilter()
    noisy = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error", connections.__name__)]
    for each in noisy:
        each.addFilter(once)
    try:
        yield
    finally:
        for each in noisy:
            each.removeFilter(once)


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, stop.set)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
