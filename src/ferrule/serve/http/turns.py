"""Turns: requests that come at the same moment are taken one after the other, so that others get in between."""

from __future__ import annotations

import asyncio


class Turns:
    """Lets one request through in a round of the event loop.

    Taking in a request, and reading it when it is complete, take about a millisecond each without a pause: a hundred in
    one round would hold up everything else, ``/health`` too."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)
