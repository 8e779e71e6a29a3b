"""What running sequences have in the ranks' caches goes with a model that moves: from the ranks that had it to those
that go on. Whatever does not come is computed again, so that nothing here raises an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec import structs

from ferrule.engine.host.ranks import Ranks
from ferrule.engine.host.starting import Start
from ferrule.engine.messages import Join, Listen, Listening, TakenOver, TakeOver
from ferrule.units import format_bytes

TAKE_SECONDS = 60.0
"""In which caches must have gone over; longer than ranks wait for each other to begin."""

_log = logging.getLogger(__name__)


async def held_by(ranks: Ranks, leaving: Sequence[int], patience: float) -> bool:
    """Have ``ranks`` hold what their caches have for those that go on; nothing is computed from then on. ``leaving``:
    as of `Hold`. ``patience``: seconds that a step under way may take. Returns whether there is something."""
    found = await ranks.hold(leaving, patience)
    reason = next((each.reason for each in found.values() if each.reason), "") if found else "they did not in time"
    if reason:
        _log.info("sequences that run are computed again where the model moves: the ranks hold nothing (%s)", reason)
    return not reason and any(each.size for each in found.values())


async def take_over(before: Ranks, now: Ranks, start: Start, number: int) -> None:
    """Have ``now``, which are ready, take over what ``before`` hold. ``start``: of them. ``number``: of the move.
    Returns soon, also where either are lost meanwhile."""
    lost = [asyncio.create_task(ranks.lost()) for ranks in (before, now)]
    taking = asyncio.create_task(_take_over(before, now, start, number))
    try:
        await asyncio.wait([taking, *lost], timeout=TAKE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            _log.warning("caches did not go over to the ranks that go on, which compute sequences again")
    finally:
        for task in (taking, *lost):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(taking, *lost, return_exceptions=True)


async def _take_over(before: Ranks, now: Ranks, start: Start, number: int) -> None:
    now.send(Listen(beyond=len({*before.hosts, *now.hosts}) > 1))
    listening = await start.told(Listening)
    there, here = len(before.hosts), len(now.hosts)
    join = Join(number, 0, here + there, listening.addresses)
    for rank in range(there):
        before.tell(rank, structs.replace(join, first=here + rank))
    now.send(TakeOver(join))
    tell(await start.told(TakenOver))


def tell(taken: TakenOver) -> None:
    """In the log."""
    if taken.asked or taken.others:
        moved = (
            f"{taken.tokens:,} of {taken.asked:,} tokens of sequences, and {taken.others:,} of prompts that may come"
        )
        again = (
            f"; the others are computed again: {taken.reason}" if taken.tokens < taken.asked and taken.reason else ""
        )
        _log.info(
            "caches moved: %s again (%s in %.2f s; computing those of sequences would have taken about %.1f s)%s",
            moved, format_bytes(taken.size), taken.seconds, taken.computing, again,
        )  # fmt: skip
    elif taken.reason:
        _log.info("sequences that ran are computed again: %s", taken.reason)
