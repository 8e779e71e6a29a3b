"""Server-sent events of a guest, as far as they are needed here: the data of one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from ferrule.errors import EngineError

MOST_BYTES = 1 << 24
"""Of an event, or an answer in one piece; what is longer is neither."""
_DATA = b"data:"


async def events(chunks: AsyncIterable[bytes], name: str) -> AsyncIterator[bytes]:
    """The data of each event in ``chunks``, its lines joined; nothing of one that is cut off. Raises `EngineError` for
    one without end; ``name``: of who says it."""
    rest = b""
    data: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(_DATA):
                data.append(line[len(_DATA) :].removeprefix(b" "))
                size += len(line)
            elif not line and data:
                yield b"\n".join(data)
                data, size = [], 0
        if len(rest) + size > MOST_BYTES:
            raise EngineError(f"{name} sends an event of more than {MOST_BYTES:,} bytes")


async def whole(chunks: AsyncIterable[bytes], name: str) -> bytes:
    """All of ``chunks``. Raises `EngineError` for more than `MOST_BYTES`."""
    found = b""
    async for chunk in chunks:
        found += chunk
        if len(found) > MOST_BYTES:
            raise EngineError(f"{name} sends an answer of more than {MOST_BYTES:,} bytes")
    return found
