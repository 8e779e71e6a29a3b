"""Requests are read beside the event loop where that takes long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

from fastapi import Request

from ferrule.engine import ImagePrompt
from ferrule.errors import RequestError
from ferrule.serve.answer.sending import shutting_down, while_wanted
from ferrule.serve.answer.service import Service
from ferrule.serve.images.shown import ShownImage, refused
from ferrule.serve.images.take import Taken

T = TypeVar("T")

SMALL_BODY = 1 << 12
"""Bytes of a request up to which it is tokenized at once, which takes milliseconds; beyond, and with a grammar to
compile, beside the event loop."""


class RequestReader:
    """Reader of one request to ``service``. ``beside``: whether it works beside the event loop."""

    def __init__(self, service: Service, request: Request, *, beside: bool) -> None:
        self.service = service
        self._request, self._beside = request, beside
        self._fetcher = request.app.state.fetcher
        self._taken = Taken(self.run, self._fetcher)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which tokenizes."""
        return await self.service.reading.run(work) if self._beside else work()

    async def see(self, text: str, shown: Sequence[ShownImage], *, special: bool = False) -> ImagePrompt:
        """The prompt of ``text``, which shows images. ``special``: with the tokens that begin a text. Raises
        `RequestError` for an image that cannot be used, and what `prepared` raises."""
        seeing = self._see(text, shown, special)
        if self._beside:
            return await seeing
        return await while_wanted(self._request.receive, self.service.closing, seeing)

    async def _see(self, text: str, shown: Sequence[ShownImage], special: bool) -> ImagePrompt:
        fetches = self._fetcher is not None and not all(each.has_data for each in shown)
        async with self._fetcher.places if fetches else nullcontext():
            files = await self._taken.files(shown)
            async with self.service.seeing:
                try:
                    return await self.service.engine.read_images(text, files, add_special_tokens=special)
                except RequestError as error:
                    kind, _, number = (error.param or "").partition(".")
                    raise refused(shown[int(number)], str(error)) if kind == "images" else error from None


async def prepared(
    service: Service, request: Request, answer: Callable[[RequestReader], Awaitable[T]], *, slow: bool = False
) -> T:
    """What ``answer`` makes of a request, tokenizing it.

    A large one, or one that is ``slow``, as with a grammar to compile, is read beside the event loop, while others are
    served; it is forgotten when the client leaves (`ClientGoneError`) or the server closes (`ApiError` 503). So is one
    whose images are read.
    """
    size = request.headers.get("content-length", "")
    if size.isdigit() and int(size) <= SMALL_BODY and not slow:
        return await answer(RequestReader(service, request, beside=False))
    if service.closing.is_set():
        raise shutting_down()
    return await while_wanted(request.receive, service.closing, answer(RequestReader(service, request, beside=True)))
