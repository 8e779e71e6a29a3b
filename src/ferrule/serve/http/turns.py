"""Turns: requests that are complete at the same moment are begun one after the other, so that others get in between."""

from __future__ import annotations

import asyncio


class Turns:
    """Lets one request through in a round of the event loop.

    Reading a request takes about a millisecond without a pause: a hundred in one round would hold up everything else,
    ``/health`` too."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)
