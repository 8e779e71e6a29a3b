"""Requests are read beside the event loop where that takes long."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from fastapi.responses import Response

from ferrule.serve.answer.sending import shutting_down, while_wanted
from ferrule.serve.answer.service import Service

SMALL_BODY = 1 << 12
"""Bytes of a request up to which it is tokenized at once, which takes milliseconds; beyond, and with a grammar to
compile, beside the event loop."""


async def prepared(
    service: Service, request: Request, answer: Callable[[], Response], *, slow: bool = False
) -> Response:
    """Response that ``answer`` makes of a request, tokenizing it.

    A large one, or one that is ``slow``, as with a grammar to compile, is read beside the event loop, while others are
    served; it is forgotten when the client leaves (`ClientGoneError`) or the server closes (`ApiError` 503).
    """
    size = request.headers.get("content-length", "")
    if size.isdigit() and int(size) <= SMALL_BODY and not slow:
        return answer()
    if service.closing.is_set():
        raise shutting_down()
    return await while_wanted(request.receive, service.closing, service.reading.run(answer))
