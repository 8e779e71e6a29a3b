"""A server on a loopback port of its own, in a thread of its own, for tests that come with a real client."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fake_engine import FakeEngine

from ferrule.serve.app import create_app
from ferrule.serve.http.connections import HttpConfig
from ferrule.serve.http.listener import listen

DEADLINE = 10.0


class QuickServer(uvicorn.Server):
    """uvicorn, which ends within some milliseconds, not 200: hundreds of tests have a server each."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: Any = None) -> None:
        """uvicorn's, but for its pause of 100 ms where no connection is left to be told."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for each in (*self.servers, *(sockets or ())):
            each.close()


@contextmanager
def running(
    engine: FakeEngine,
    *,
    api_key: str | None = None,
    keys: Path | None = None,
    origins: Sequence[str] = (),
    max_sequences: int = 256,
    tool_parser: str = "auto",
    **limits: Any,
) -> Iterator[str]:
    """The base URL, without /v1, of a server of ``engine``. ``limits`` are `HttpConfig`'s."""
    app = create_app(
        engine, api_key=api_key, keys=keys, origins=origins, max_sequences=max_sequences, tool_parser=tool_parser
    )
    with served(app, **limits) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def served(app: Any, listener: socket.socket | None = None, **limits: Any) -> Iterator[int]:
    """The port on which the ASGI application ``app`` is served, of loopback unless there is a ``listener``, with
    `HttpConfig`'s ``limits``."""
    listener = listener or listen("127.0.0.1", 0, api_key=None, encrypted=False)
    server = QuickServer(HttpConfig(app, **limits))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(DEADLINE)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does, but not for ever."""
    deadline = time.monotonic() + DEADLINE
    waiting = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        waiting.wait(0.005)
