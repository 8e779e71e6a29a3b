"""One start of a guest: its server and what that needs, until one of them ends."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ferrule.engine.guests.events import events, whole
from ferrule.engine.guests.guest import Guest, Launch, Post
from ferrule.engine.guests.held import HeldProcess
from ferrule.engine.host.placement import Loss
from ferrule.errors import EngineError, FerruleError, ModelUnavailable, RequestError

if TYPE_CHECKING:
    import httpx

HEALTH_SECONDS = 5.0
"""Between two looks at a guest's health."""
DEAF_SECONDS = 60.0
"""A guest that does not say within so long that it is healthy counts as lost, whether it still runs or not."""
SILENT_SECONDS = 600.0
"""Time limit for the next event of a stream; longer than any step takes."""
CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_JSON = {"Content-Type": "application/json"}
_REFUSED = (400, 413, 422)
"""HTTP statuses by which a guest says that a request is at fault."""


class GuestLostError(EngineError):
    """The guest ended, or hung up, while it was being asked."""


class Running:
    """A guest that runs. Made by `bring_up`. ``context``: tokens that it has room for."""

    def __init__(self, guest: Guest, launch: Launch, stack: AsyncExitStack) -> None:
        self.guest, self.launch, self._stack = guest, launch, stack
        self.context = launch.room.context
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._server: HeldProcess | None = None
        self._client: httpx.AsyncClient | None = None

    @property
    def pid(self) -> int:
        return 0 if self._server is None else self._server.pid

    async def lost(self) -> Loss:
        """Wait until it is gone. Why."""
        reason = await asyncio.shield(self._lost)
        words = "" if self._server is None else self._server.words
        return Loss(EngineError(f"{self.guest.name} {reason}{words}"), (0,), ("",), crashed=True)

    async def stop(self) -> None:
        """End it with all that it has started. Safe to call twice."""
        await self._stack.aclose()

    @asynccontextmanager
    async def stream(self, post: Post) -> AsyncIterator[AsyncIterator[bytes]]:
        """The events that answer a request, which ends with the context. Raises `RequestError` for one that the guest
        refuses, `GuestLostError` where it hangs up, `EngineError` for what makes no sense."""
        async with self._asked("POST", post.path, post.body) as response:
            yield events(response.aiter_raw(), self.guest.name)

    async def whole(self, post: Post) -> bytes:
        """The answer to a request in one piece. Raises as `stream` does."""
        async with self._asked("POST", post.path, post.body) as response:
            return await whole(response.aiter_raw(), self.guest.name)

    async def begin(self) -> None:
        """Start it, and wait until it is healthy. Raises `FerruleError`; then nothing of it is left."""
        try:
            command = await self._stack.enter_async_context(self.guest.begun(self.launch))
            if command.lost is not None:
                self._follow(command.lost)
            self._server = HeldProcess(self.guest.name, command.line, command.environment)
            self._stack.push_async_callback(self._server.stop)
            self._follow(self._server.lost)
            self._client = await self._stack.enter_async_context(client_of(self.launch.socket))
            await self._until_healthy()
            await self._read_facts()
            watch = asyncio.create_task(self._look_after(), name=f"health of {self.guest.name}")
            self._stack.callback(watch.cancel)
        except BaseException:
            await self.stop()
            raise

    def _follow(self, lost: asyncio.Future[str]) -> None:
        lost.add_done_callback(lambda done: None if done.cancelled() else self._gone(done.result()))

    def _gone(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)

    @asynccontextmanager
    async def _asked(self, method: str, path: str, body: Any = None) -> AsyncIterator[httpx.Response]:
        import httpx

        assert self._client is not None
        name = self.guest.name
        try:
            content = None if body is None else msgspec.json.encode(body)
            async with self._client.stream(method, path, content=content, headers=_JSON) as response:
                if response.status_code != 200:
                    raise self._refused(response.status_code, await whole(response.aiter_raw(), name))
                yield response
        except httpx.ReadTimeout:
            raise EngineError(f"{name} has said nothing for {SILENT_SECONDS:.0f} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise GuestLostError(f"{name} hung up: {str(error) or type(error).__name__}") from None

    def _refused(self, status: int, data: bytes) -> FerruleError:
        why = f"{self.guest.name}: {self.guest.refusal(data) or f'it answers with status {status}'}"
        if status == 503:
            return ModelUnavailable(why)
        return RequestError(why) if status in _REFUSED else EngineError(why)

    async def _until_healthy(self) -> None:
        try:
            async with asyncio.timeout(self.guest.start_seconds):
                while not self._lost.done() and not await self._is_healthy():
                    await asyncio.wait([self._lost], timeout=_LOOK_SECONDS)
        except TimeoutError:
            self._gone(f"was not ready within {self.guest.start_seconds:g} s")
        if self._lost.done():
            raise (await self.lost()).error

    async def _is_healthy(self) -> bool:
        import httpx

        assert self._client is not None
        try:
            return (await self._client.get(self.guest.health, timeout=CONNECT_SECONDS)).status_code == 200
        except httpx.HTTPError:
            return False

    async def _read_facts(self) -> None:
        if self.guest.facts is None:
            return
        try:
            async with self._asked("GET", self.guest.facts) as response:
                told = msgspec.json.decode(await whole(response.aiter_raw(), self.guest.name))
            self.context = min(self.context, self.guest.context(told) or self.context)
        except (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, RequestError) as error:
            raise EngineError(f"{self.guest.name} does not say what it has loaded: {error}") from None

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while not self._lost.done():
            await asyncio.wait([self._lost], timeout=HEALTH_SECONDS)
            if await self._is_healthy():
                heard = loop.time()
            elif loop.time() - heard > DEAF_SECONDS:
                self._gone(f"has not answered for {DEAF_SECONDS:.0f} s")


async def bring_up(guest: Guest, launch: Launch) -> Running:
    """Start ``guest``, and wait until it is healthy; ``launch.socket`` is chosen here. Raises `FerruleError`, and then
    nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="ferrule-"))  # of this user alone, as the socket in it is
    stack = AsyncExitStack()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    running = Running(guest, replace(launch, socket=folder / "guest.sock"), stack)
    await running.begin()
    return running


def client_of(socket: Path) -> httpx.AsyncClient:
    """Client of the server behind a Unix socket: as many connections at once as there are requests."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.AsyncClient(
        base_url="http://guest",
        transport=httpx.AsyncHTTPTransport(uds=str(socket), limits=limits),
        timeout=httpx.Timeout(CONNECT_SECONDS, read=SILENT_SECONDS),
    )
