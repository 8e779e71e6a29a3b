"""Files of a request's images: decoded or fetched, each once, and within the limits of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from ferrule.serve.images.fetch import Fetcher, disabled
from ferrule.serve.images.shown import (
    MOST_BYTES,
    MOST_IMAGES,
    MOST_PIXELS_TOGETHER,
    ShownImage,
    check,
    data_of,
    refused,
)
from ferrule.units import format_bytes

Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]

TOO_MANY: Final = "too_many_images"


class Taken:
    """Files of one request's images by their URLs. ``run``: decodes, beside the event loop where that takes long.
    ``fetcher``: None where none may be fetched."""

    def __init__(self, run: Run, fetcher: Fetcher | None) -> None:
        self._run, self._fetcher = run, fetcher
        self._files = dict[str, bytes]()

    async def files(self, shown: Sequence[ShownImage]) -> list[bytes]:
        """Those of the former call are not read again. Raises `RequestError` for one that cannot be used, and with the
        code `TOO_MANY` where they are too many or too large together."""
        if len(shown) > MOST_IMAGES:
            raise refused(shown[MOST_IMAGES], f"a request may have {MOST_IMAGES}", TOO_MANY)
        former, self._files = self._files, {}
        total = pixels = 0
        for each in shown:
            if each.url in self._files:
                continue
            file = self._files[each.url] = former.get(each.url) or await self._file(each)
            header = check(each, file)
            total, pixels = total + len(file), pixels + header.width * header.height
            if pixels > MOST_PIXELS_TOGETHER or total > MOST_BYTES:
                most = f"{MOST_PIXELS_TOGETHER:,} pixels or {format_bytes(MOST_BYTES)}"
                raise refused(each, f"with those before it, it has more than {most}", TOO_MANY)
        return [self._files[each.url] for each in shown]

    async def _file(self, shown: ShownImage) -> bytes:
        if shown.has_data:
            return await self._run(partial(data_of, shown))
        if self._fetcher is None:
            raise disabled(shown)
        return await self._fetcher.fetch(shown)
