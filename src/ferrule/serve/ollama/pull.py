"""``POST /api/pull`` and ``DELETE /api/delete``: models of the hub on this host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ferrule.engine.download import (
    DownloadStopped,
    Release,
    RemoteFile,
    check_room,
    complete,
    fetch,
    find_release,
    remove,
)
from ferrule.engine.host.prepare import in_background
from ferrule.errors import FerruleError, RequestError
from ferrule.model import Hub
from ferrule.model.hub import HUB_ID
from ferrule.serve.answer.sending import STREAM_HEADERS, ClientGoneError, while_wanted
from ferrule.serve.http.error_forms import OllamaErrorBody
from ferrule.serve.http.errors import ApiError, api_error
from ferrule.serve.http.respond import respond
from ferrule.serve.models import Models
from ferrule.serve.ollama.form import NDJSON, line
from ferrule.serve.ollama.names import means, plain
from ferrule.serve.ollama.objects import Progress

MOST_PULLS = 2
"""Models that are downloaded at once; they share the network and the disk."""
TELL_SECONDS = 0.2
"""Between two lines of one file."""


def hub_id_of(name: str) -> str:
    """The hub's id of what a client calls a model. Raises `RequestError` where it has none."""
    wanted = plain(name)
    if ":" in wanted:
        raise RequestError(
            f"model: tags such as {wanted.rpartition(':')[2]!r} are not known to the hub; name owner/name",
            param="model",
        )
    if not HUB_ID.fullmatch(wanted):
        raise RequestError(
            f"model: {name!r} is no id of the hub; models come from there and not from Ollama's library: name "
            "owner/name, such as Qwen/Qwen3-0.6B",
            param="model",
        )
    return wanted


class Pulls:
    """Downloads of one address."""

    def __init__(self) -> None:
        self._running = 0

    def answer(self, name: str, *, stream: bool) -> Response:
        """Raises `ApiError` 429 where too many run."""
        if self._running >= MOST_PULLS:
            raise ApiError(429, f"{MOST_PULLS} models are being downloaded; try again later", retry_after=10)
        return PullAnswer(self, hub_id_of(name), stream=stream)

    async def lines(self, hub_id: str) -> AsyncGenerator[Progress]:
        """What is said of a download; it stops with this generator. Raises `ModelError`."""
        self._running += 1
        try:
            async with aclosing(_lines(Hub.from_environment(), hub_id)) as lines:
                async for each in lines:
                    yield each
        finally:
            self._running -= 1


async def _lines(hub: Hub, hub_id: str) -> AsyncGenerator[Progress]:
    yield Progress("pulling manifest")
    release = await in_background(lambda: find_release(hub, hub_id))
    await in_background(lambda: check_room(hub, release))
    for file in release.files:
        async with aclosing(_file_lines(hub, release, file)) as lines:
            async for each in lines:
                yield each
    yield Progress("verifying sha256 digest")  # of each file, when it had arrived
    yield Progress("writing manifest")
    await in_background(lambda: complete(hub, release))
    yield Progress("success")


async def _file_lines(hub: Hub, release: Release, file: RemoteFile) -> AsyncGenerator[Progress]:
    status = f"pulling {file.digest.partition(':')[2][:12]}"
    gone, done = threading.Event(), 0

    def on_bytes(count: int) -> None:
        nonlocal done
        if gone.is_set():
            raise DownloadStopped
        done += count

    fetching = asyncio.ensure_future(in_background(lambda: fetch(hub, release, file, on_bytes)))
    told = -1
    try:
        while not fetching.done():
            if done != told:
                told = done
                yield Progress(status, file.digest, file.size, min(told, file.size))
            await asyncio.wait([fetching], timeout=TELL_SECONDS)
        fetching.result()
        yield Progress(status, file.digest, file.size, file.size)
    finally:
        gone.set()
        fetching.cancel()


class PullAnswer(Response):
    """The lines of a download, or only how it ended."""

    def __init__(self, pulls: Pulls, hub_id: str, *, stream: bool) -> None:
        super().__init__()
        self._pulls, self._hub_id, self._stream = pulls, hub_id, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pulls.lines(self._hub_id)) as lines:
            write = self._write(lines, send) if self._stream else self._write_whole(lines, scope, receive, send)
            try:
                # A server that closes cuts such answers off by itself: what is here is kept.
                await while_wanted(receive, asyncio.Event(), write)
            except ClientGoneError:
                return

    async def _write(self, lines: AsyncIterator[Progress], send: Send) -> None:
        head = Response(media_type=NDJSON, headers=STREAM_HEADERS)
        headers = [(name, value) for name, value in head.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for each in lines:
                await send({"type": "http.response.body", "body": line(each), "more_body": True})
            last = b""
        except FerruleError as error:
            last = line(OllamaErrorBody(api_error(error).message))
        await send({"type": "http.response.body", "body": last})

    async def _write_whole(self, lines: AsyncIterator[Progress], scope: Scope, receive: Receive, send: Send) -> None:
        last = Progress("")
        async for each in lines:
            last = each
        await respond(last)(scope, receive, send)


async def delete(models: Models, name: str) -> Response:
    """Remove a model from the hub's cache. Raises `ApiError` 404 where there is none, 400 where it is served."""
    if any(means(name, engine) for engine in models.cards()):
        raise ApiError(400, f"{name!r} is being served, and so is not deleted; stop it first", code="in_use")
    hub_id = hub_id_of(name)
    if not await in_background(lambda: remove(Hub.from_environment(), hub_id)):
        raise ApiError(
            404, f"the model {name!r} was not downloaded from the hub", code="model_not_found", param="model"
        )
    return Response(status_code=200)
