"""Ranks of a deployment on their way to being ready, and whom they serve then."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ferrule.engine.host.placement import Loss
from ferrule.engine.host.ranks import Ranks
from ferrule.engine.messages import Event, Listening, Loading, Ready, TakenOver
from ferrule.engine.options import LOAD_TIMEOUT
from ferrule.engine.types import RankInfo
from ferrule.errors import EngineError, FerruleError
from ferrule.plan import Plan

_Told = TypeVar("_Told", Listening, TakenOver)


class RanksLostError(Exception):
    """The ranks were lost before the model was ready."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(str(loss.error))
        self.loss = loss


@dataclass
class Running:
    """A deployment that is ready. ``cache_tokens``: how many tokens the caches of every rank hold."""

    plan: Plan
    infos: dict[int, RankInfo] = field(default_factory=dict)
    cache_tokens: int = 0


class Served(Protocol):
    """Owner of the requests that the ranks answer. All of it is called from the event loop."""

    def heard(self, event: Event) -> None:
        """An event of a rank that runs."""
        ...

    def went_up(self, running: Running) -> int:
        """The model is ready: send the requests that are open. Returns how many were interrupted and go on."""
        ...

    def idle(self) -> bool:
        """Whether no request runs or waits."""
        ...

    def went_down(self, loss: Loss) -> bool:
        """The ranks are gone. Returns whether a request is to blame, and given up."""
        ...

    def failed(self, error: FerruleError) -> None:
        """The model does not come back."""
        ...


class Start:
    """Start of the ranks of ``plan``, or of those that are new. ``running``: what they say when they are ready;
    ``taken``: what they took over of caches before."""

    def __init__(self, plan: Plan, served: Served) -> None:
        self.running, self._served = Running(plan), served
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._reached: dict[int, str] = {}
        self.taken: TakenOver | None = None
        self._awaited: tuple[type[Event], asyncio.Future[Any]] | None = None

    def heard(self, rank: int, event: Event) -> None:
        if not isinstance(event, Ready):
            if self._awaited is not None and isinstance(event, self._awaited[0]):
                if not self._awaited[1].done():
                    self._awaited[1].set_result(event)
                return
            if isinstance(event, TakenOver):
                self.taken = event
                return
            if isinstance(event, Loading):
                self._reached[event.progress.rank] = event.progress.phase
            self._served.heard(event)
            return
        running = self.running
        self._reached[rank] = "ready"
        running.infos[rank] = event.info
        running.cache_tokens = min(running.cache_tokens or event.cache_tokens, event.cache_tokens)
        if len(running.infos) == running.plan.world_size and not self._ready.done():
            self._ready.set_result(None)

    async def told(self, kind: type[_Told]) -> _Told:
        """Wait until the driver says something of this ``kind``."""
        self._awaited = kind, asyncio.get_running_loop().create_future()
        try:
            found: _Told = await self._awaited[1]
            return found
        finally:
            self._awaited = None

    async def done(self, ranks: Ranks) -> None:
        """Raises `RanksLostError`, and `EngineError` where it takes too long."""
        lost: asyncio.Future[Any] = asyncio.create_task(ranks.lost())
        try:
            await asyncio.wait([self._ready, lost], timeout=LOAD_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise RanksLostError(lost.result())
            if not self._ready.done():
                size = self.running.plan.world_size
                stages = ", ".join(f"rank {rank}: {self._reached.get(rank, 'not begun')}" for rank in range(size))
                raise EngineError(f"loading took more than {LOAD_TIMEOUT:g} s; where the ranks are: {stages}")
        finally:
            lost.cancel()
