"""Requests that come at one moment are begun one after the other."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from ferrule.serve.http.turns import Turns


def test_one_is_let_through_in_a_round_and_others_get_in_between() -> None:
    told: list[str] = []

    async def request(turns: Turns, name: int) -> None:
        await turns.next()
        told.append(f"request {name}")

    async def other() -> None:
        for _ in range(12):
            told.append("other")
            await asyncio.sleep(0)

    async def main() -> None:
        turns = Turns()
        await asyncio.gather(*(request(turns, name) for name in range(4)), other())

    asyncio.run(main())
    requests = [at for at, each in enumerate(told) if each != "other"]
    assert [told[at] for at in requests] == [f"request {name}" for name in range(4)]
    assert all(later - earlier > 1 for earlier, later in pairwise(requests))
