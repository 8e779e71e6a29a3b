"""HTTP front of the models that `ferrule serve` loads: where it listens, and who may use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from ferrule.serve.keys.record import read_keys

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.engine import Engine
    from ferrule.engine.host.speed import Speed
    from ferrule.serve.http.request_log import RequestLog
    from ferrule.serve.http.tls import ServerTls


@dataclass(frozen=True)
class Front:
    """Settings that do not depend on what is served; as `ferrule.serve.server.serve` takes them. ``host``: as given."""

    listener: socket
    host: str
    api_key: str | None
    keys: Path
    requests: RequestLog | None
    tls: ServerTls | None
    origins: tuple[str, ...]
    image_urls: bool = False
    share_downloads: bool = False
    max_queue_seconds: float | None = None

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def keyed(self) -> bool:
        """Whether clients need a key."""
        return self.api_key is not None or read_keys(self.keys) is not None

    def run_engine(
        self, console: Console, load: Callable[[], Awaitable[tuple[Engine, Speed | None]]], **options: Any
    ) -> None:
        """Serve the engine that ``load`` starts, as `run`; once it is ready say so, and how fast it was found to be."""
        from ferrule.cli.display import show_ready

        speed: Speed | None = None

        async def loaded() -> Engine:
            nonlocal speed
            engine, speed = await load()
            return engine

        def ready(engine: Engine) -> None:
            show_ready(console, engine, self.host, self.port, with_key=self.keyed, tls=self.tls, speed=speed)

        self.run(loaded, ready, **options)

    def run(self, load: Callable[[], Awaitable[Any]], on_ready: Callable[[Any], None], **options: Any) -> None:
        """Serve what ``load`` loads until it is stopped. ``options``: further ones of `ferrule.serve.server.serve`."""
        import asyncio

        from ferrule.serve.server import serve

        asyncio.run(
            serve(
                load,
                self.listener,
                api_key=self.api_key,
                keys=self.keys,
                requests=self.requests,
                tls=self.tls,
                origins=self.origins,
                image_urls=self.image_urls,
                share_downloads=self.share_downloads,
                max_queue_seconds=self.max_queue_seconds,
                on_ready=on_ready,
                **options,
            )
        )
