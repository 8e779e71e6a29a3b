"""An engine whose prompts are computed by ranks apart, which another engine keeps: either lives on without the other.

The ranks for answers ask for the blocks of a prompt (`Wanted`), the other engine is given the prompt as a request of
its own, and its ranks hand over what they compute (`ferrule.engine.rank.handover`), by a group of all ranks that is
joined anew whenever both engines are ready. What does not come is computed by the ranks for answers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from ferrule.engine.host.local import LocalEngine
from ferrule.engine.host.placement import Loss, Planner
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.host.requests import Request
from ferrule.engine.host.starting import Running
from ferrule.engine.messages import (
    Hand,
    HandedOver,
    HandOverEvent,
    Join,
    Joined,
    Listen,
    Listening,
    Parted,
    Received,
    Unhanded,
    Wanted,
)
from ferrule.engine.options import EngineOptions
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.types import HandOverUse, Health, SamplingParams, State
from ferrule.errors import FerruleError

JOIN_SECONDS = 90.0
"""In which all ranks must have joined; longer than they wait for each other."""
RETRY_SECONDS = 2.0
MOST_SECONDS = 60.0
"""Pause before they are to join again, twice as long each time, up to this."""

_log = logging.getLogger(__name__)


class ApartEngine(LocalEngine):
    """`ferrule.engine.types.Engine`, of the ranks for answers. ``prompts``: the engine of those for prompts, which this
    one closes; where it is not loaded when this one is, `load_later` does so. ``secret``: the one of ``prompts``, too.
    ``beyond``: there are ranks on several hosts. ``whole``: prompts are handed over when all of them is computed, to
    compare."""

    def __init__(
        self,
        options: EngineOptions,
        model: PreparedModel,
        planner: Planner,
        prompts: LocalEngine,
        secret: str,
        *,
        beyond: bool = False,
    ) -> None:
        super().__init__(options, model, planner, secret)
        self._beyond = beyond
        self._loading: asyncio.Task[None] | None = None
        self._lacks: FerruleError | None = None
        """Why the ranks for prompts could not be loaded yet."""
        self.prompts, self.whole = prompts, False
        self.on_hand_over = prompts.on_hand_over = self._hand_over
        prompts.on_change = self._changed
        self._use = HandOverUse("loading")
        self._joined = self._tried = 0
        self._joining: asyncio.Task[None] | None = None
        self._told: asyncio.Queue[HandOverEvent] = asyncio.Queue()
        """Of joining."""
        self._computing: dict[int, asyncio.Task[None]] = {}

    async def joined(self, seconds: float) -> None:
        """Wait until prompts can be handed over. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not self._joined:
                await asyncio.sleep(0.01)

    @property
    def hand_over(self) -> HandOverUse:
        """As `health` tells it."""
        told = self.prompts.health()
        waits = self._lacks is not None and told.state == "loading"
        state: State = "waiting" if waits else told.state
        error = str(self._lacks) if waits else told.error
        return replace(self._use, state=state, error=error, joined=bool(self._joined))

    def load_later(self, error: FerruleError) -> None:
        """The ranks for prompts could not be loaded because of ``error``: try it again and again. Until then prompts
        are computed by the ranks for answers."""
        self._lacks = error
        self._loading = asyncio.create_task(self._load_prompts(), name="loading ranks for prompts")

    async def _load_prompts(self) -> None:
        pause = RETRY_SECONDS
        while self._lacks is not None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_SECONDS)
            try:
                await self.prompts.load(None)
                self._lacks = None
            except FerruleError as error:
                _log.info("the ranks that compute prompts cannot be loaded: %s", error)
                self._lacks = error

    def health(self) -> Health:
        return replace(super().health(), hand_over=self.hand_over)

    def went_up(self, running: Running) -> int:
        going_on = super().went_up(running)
        self._changed()
        return going_on

    def went_down(self, loss: Loss) -> bool:
        found = super().went_down(loss)
        self._changed()
        return found

    def failed(self, error: FerruleError) -> None:
        super().failed(error)
        self._changed()

    async def close(self) -> None:
        tasks = [*self._computing.values(), *(each for each in (self._joining, self._loading) if each)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._joining = None
        await asyncio.gather(super().close(), self.prompts.close())

    def _changed(self, pause: float = 0.0) -> None:
        """Ranks are up or gone: those that are ready join, after a ``pause`` in seconds."""
        self._part()
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        if self.state == self.prompts.state == "ready":
            self._joining = asyncio.create_task(self._join(pause), name="joining ranks for prompts")

    def _part(self) -> None:
        """Nothing can be handed over now: prompts that are under way are computed by the ranks for answers."""
        self._joined = 0
        for number in list(self._computing):
            self._give_up(number)

    async def _join(self, pause: float) -> None:
        await asyncio.sleep(pause)
        pause = RETRY_SECONDS
        while not await self._try_to_join():
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_SECONDS)

    async def _try_to_join(self) -> bool:
        self._tried += 1
        while not self._told.empty():
            self._told.get_nowait()
        here, there = self.plan.world_size, self.prompts.plan.world_size
        self.order(Listen(self._beyond))
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_SECONDS):
                while not isinstance(listening := await self._told.get(), Listening):
                    pass
                for engine, first in ((self, 0), (self.prompts, here)):
                    engine.order(Join(self._tried, first, here + there, listening.addresses))
                while True:
                    event = await self._told.get()
                    if isinstance(event, Joined) and event.number == self._tried:
                        self._joined = event.number
                        return True
                    if isinstance(event, Parted) and event.number == self._tried:
                        _log.warning("the ranks that compute prompts are not joined: %s", event.reason)
                        return False
        _log.warning("the ranks that compute prompts were not joined within %g s", JOIN_SECONDS)
        return False

    def _hand_over(self, event: HandOverEvent) -> None:
        use = self._use
        match event:
            case Wanted():
                request = self._requests.open.get(event.id)
                if request is None or event.number != self._joined:
                    self.order(Unhanded(event.id))
                    return
                name = f"prompt of request {event.id}"
                self._computing[event.id] = asyncio.create_task(self._compute(request, event), name=name)
            case Received():
                come = event.blocks == event.wanted
                self._use = replace(
                    use,
                    prompts=use.prompts + come,
                    tokens=use.tokens + BLOCK * event.blocks,
                    failed=use.failed + (not come),
                )
                if not come:
                    self._give_up(event.id)
            case HandedOver():
                seconds, behind = use.seconds + event.seconds, use.behind + event.behind
                self._use = replace(use, size=use.size + event.size, seconds=seconds, behind=behind)
            case Parted() if event.number == self._joined:
                _log.warning("prompts are computed by the ranks for answers until others are back: %s", event.reason)
                self._changed(RETRY_SECONDS)  # in which it shows whether ranks are lost
            case _:
                self._told.put_nowait(event)

    async def _compute(self, request: Request, wanted: Wanted) -> None:
        """Have a prompt computed by the other engine."""
        hand = Hand(request.number, wanted.first, wanted.last, wanted.number, self.whole)
        params = SamplingParams(max_tokens=1, temperature=0.0, adapter=request.params.adapter, turn=request.params.turn)
        try:
            async for _ in self.prompts.generate(request.prompt[: wanted.last * BLOCK], params, hand=hand):
                pass
        except FerruleError as error:
            _log.warning("a prompt is computed by the ranks for answers: %s", error)
            self.order(Unhanded(request.number))
        finally:
            self._computing.pop(request.number, None)

    def _give_up(self, number: int) -> None:
        """No more of a prompt is to come."""
        task = self._computing.pop(number, None)
        if task is not None:
            task.cancel()
            self.order(Unhanded(number))

    def _forget(self, request: Request) -> None:
        super()._forget(request)
        task = self._computing.pop(request.number, None)
        if task is not None:
            task.cancel()
