"""From a request's text to the model's tokens. What cannot fit is refused without tokenizing all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from ferrule.engine import Engine
from ferrule.engine.types import VECTORS_ONLY
from ferrule.errors import RequestError
from ferrule.serve.http.errors import ApiError

T = TypeVar("T")

MAX_BODY_BYTES = 8 * 2**20
"""A request larger than this is refused. A million tokens of text are about 4 MiB."""

BODY_BYTES = 2**20
BODY_BYTES_PER_TOKEN = 32
"""Bytes of a body per token of the context, beyond `BODY_BYTES`. Chinese text in JSON's escapes has some 10."""

IMAGE_BODY_BYTES = 24 * 2**20
"""Bytes that a body may have more where a model sees: of base64's letters, as a string of them costs little to read.
All else in it is bounded as without images (`ferrule.serve.http.auth.beside_base64`)."""

SEGMENT_CHARACTERS = 1 << 15
"""A text is measured in pieces of so many characters, whatever the context. A piece takes about 10 ms and 6 MiB. As a
whole, a text takes about four times as long, and 180 bytes per character."""

CUT_TOKENS = 16
"""Tokens by which a text may have fewer than its two halves, cut anywhere, have together; in truth two or three."""

THREADS = 2
MOST_WAITING = 64


def body_limit(context: int) -> int:
    """The most bytes that a request to a model of ``context`` tokens may have."""
    return min(MAX_BODY_BYTES, BODY_BYTES + BODY_BYTES_PER_TOKEN * context)


def check_answers(engine: Engine) -> None:
    """Raises `RequestError` for a model that only makes vectors."""
    if engine.embedding.only:
        raise RequestError(VECTORS_ONLY, param="model", code="unsupported")


def encode(engine: Engine, text: str, *, field: str, add_special_tokens: bool = True) -> tuple[int, ...]:
    """The tokens of ``text``. Raises `RequestError` when they are certainly more than the context holds."""
    check_length(engine, text, field)
    return tuple(engine.tokenizer.encode(text, add_special_tokens=add_special_tokens))


def check_length(engine: Engine, text: str, field: str) -> None:
    """Raise `RequestError` when ``text`` has certainly more tokens than the context holds."""
    # Where a token is less than a character there may be more of them, yet they are bounded by the context.
    if len(text) > max(SEGMENT_CHARACTERS, engine.max_context) and is_too_long(engine, text):
        raise too_long(engine, f"{len(text)} characters, which are", field)


def is_too_long(engine: Engine, text: str) -> bool:
    """Whether ``text`` has more tokens than the context holds, counted in pieces until that is certain."""
    counted = 0
    for at in range(0, len(text), SEGMENT_CHARACTERS):
        piece = text[at : at + SEGMENT_CHARACTERS]
        counted += len(engine.tokenizer.encode(piece, add_special_tokens=False)) - CUT_TOKENS
        if counted > engine.max_context:
            return True
    return False


def too_long(engine: Engine, amount: str, field: str) -> RequestError:
    return RequestError(
        f"{field}: it has {amount} more than this model's context of {engine.max_context} tokens holds; shorten it",
        param=field,
        code="context_length_exceeded",
    )


class TokenizerPool:
    """Threads that prepare requests beside the event loop, and a limit on how many wait for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._places = BoundedSemaphore(MOST_WAITING)

    async def run(self, work: Callable[[], T]) -> T:
        """Result of ``work``. Raises what it raises, and `ApiError` 429 when too many are waiting."""
        if not self._places.acquire(blocking=False):
            raise ApiError(
                429,
                f"{MOST_WAITING} requests wait to be read; try again later",
                code="too_many_requests",
                retry_after=1,
            )
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Forget what waits; what has begun is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
