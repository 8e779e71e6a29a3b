"""Start of a model in several whole copies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ferrule.engine.host.local import LocalEngine, loaded
from ferrule.engine.host.placement import Planner
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import EngineOptions
from ferrule.engine.replicas.engine import Replicas
from ferrule.engine.types import Progress, ProgressCallback
from ferrule.errors import FerruleError, ModelUnavailable

_log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Pause before a replica is tried again whose place cannot have it now; of one that failed, twice as long each time."""
MOST_SECONDS = 300.0


@dataclass(frozen=True)
class ReplicaPlace:
    """Options of one replica, and what makes the planner of its place. ``speed``: relative to the others, once it is
    loaded."""

    options: EngineOptions
    planner: Callable[[PreparedModel], Planner]
    speed: Callable[[], float] = lambda: 1.0


async def start_replicas(
    model: PreparedModel, places: Sequence[ReplicaPlace], on_progress: ProgressCallback | None = None
) -> Replicas:
    """Load a replica of ``model`` at each of ``places`` of one machine: one after the other where they share memory,
    so that each knows what is left, else at once. Raises `EngineError` where a rank fails; no replica is left then."""
    loading = _loading(model, places, on_progress, apart=all(place.options.copies == 1 for place in places))
    try:
        loaded = await asyncio.gather(*loading)
    except BaseException:
        await _give_up(loading)
        raise
    found = Replicas(loaded[0], len(places))
    for number, (place, engine) in enumerate(zip(places, loaded, strict=True)):
        engine.all_loaded()
        found.add(number, engine, place.speed())
    return found


async def start_replicas_apart(
    model: PreparedModel, places: Sequence[ReplicaPlace], on_progress: ProgressCallback | None = None
) -> Replicas:
    """Load a replica of ``model`` at each of ``places``, which share no host, at once. Those that cannot be loaded now
    are tried again, as long as there is one. Raises why there is none: an `EngineError` where a rank fails, else
    `ModelUnavailable`; no replica is left then."""
    loading = _loading(model, places, on_progress, apart=True)
    try:
        await asyncio.wait(loading)
        errors = [error for task in loading if (error := task.exception()) is not None]
        errors.sort(key=lambda error: (isinstance(error, FerruleError), isinstance(error, ModelUnavailable)))
        if errors and (len(errors) == len(places) or not isinstance(errors[0], FerruleError)):
            raise errors[0]
    except BaseException:
        await _give_up(loading)
        raise
    results = await asyncio.gather(*loading, return_exceptions=True)
    found = Replicas(next(each for each in results if isinstance(each, LocalEngine)), len(places))
    for number, (place, result) in enumerate(zip(places, results, strict=True)):
        if isinstance(result, LocalEngine):
            found.add(number, result, place.speed())
        elif isinstance(result, FerruleError):
            found.lacks(number, result)
            found.add_later(number, _keep_trying(found, number, place, model))
    return found


def _loading(
    model: PreparedModel, places: Sequence[ReplicaPlace], on_progress: ProgressCallback | None, *, apart: bool
) -> list[asyncio.Task[LocalEngine]]:
    """``apart``: at once, else each when the one before has ended."""
    turn = asyncio.Semaphore(len(places) if apart else 1)

    async def load(number: int, place: ReplicaPlace) -> LocalEngine:
        async with turn:
            return await _load(number, place, model, on_progress)

    return [
        asyncio.create_task(load(number, place), name=f"replica {number + 1}") for number, place in enumerate(places)
    ]


async def _give_up(loading: Sequence[asyncio.Task[LocalEngine]]) -> None:
    """Close what was loaded, and end what is loading."""
    for task in loading:
        task.cancel()
    ended = await asyncio.gather(*loading, return_exceptions=True)
    await asyncio.gather(*(each.close() for each in ended if isinstance(each, LocalEngine)))


async def _keep_trying(found: Replicas, number: int, place: ReplicaPlace, model: PreparedModel) -> None:
    pause = RETRY_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            engine = await _load(number, place, model, None)
        except FerruleError as error:
            _log.info("replica %d cannot be loaded: %s", number + 1, error)
            found.lacks(number, error)
            pause = RETRY_SECONDS if isinstance(error, ModelUnavailable) else min(2 * pause, MOST_SECONDS)
        else:
            found.add(number, engine, place.speed())
            return


async def _load(
    number: int, place: ReplicaPlace, model: PreparedModel, on_progress: ProgressCallback | None
) -> LocalEngine:
    def heard(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(replace(progress, replica=number + 1))

    return await loaded(place.options, model, place.planner(model), heard)
