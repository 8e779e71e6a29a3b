"""A model that moves in mid-answer, its ranks as threads: those that had it, those that go on, and their server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from apart_ranks import SECONDS, SETTINGS, Line
from in_threads import on_plan
from msgspec import structs
from prefix_ranks import CONTEXT, VOCABULARY

from ferrule.engine.devices import open_device
from ferrule.engine.messages import Add, CachesHeld, Event, Hold, Join, Listen, Listening, TakenOver, TakeOver, Tokens
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.cache.shared import open_index
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.driver.moving import learn
from ferrule.engine.rank.handover.held_caches import HeldCaches
from ferrule.engine.rank.handover.keeper import Keeper, hand_on, why_not
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.warm_up import warm_up
from ferrule.engine.rank.worker import follow
from ferrule.errors import EngineError, FabricError
from ferrule.fabric import Group
from ferrule.plan import Plan

SECRET = "ab" * 32
BEGUN = 3
"""Tokens of an answer, when the model moves."""
TOKEN_SECONDS = 10.0
"""What computing a token seems to take: so that it is not by chance that caches move."""


@dataclass
class Kept:
    """Of ranks that stay, by number: what they have loaded, and hold."""

    runners: dict[int, StepRunner] = field(default_factory=dict)
    held: dict[int, HeldCaches] = field(default_factory=dict)


class Session:
    """Ranks of ``plan``, until they are stopped or told to hold what they have. ``kept``: has what those had that were
    there before, and gets what those have that stay. ``prepare``: called with each rank's keeper, on its thread."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        kept: Kept | None = None,
        prepare: Callable[[Keeper], None] = lambda keeper: None,
        token_seconds: float = TOKEN_SECONDS,
        **options: Any,
    ) -> None:
        limits = {"batch_tokens": 48, **options}
        tokens, self._room = limits.pop("batch_tokens"), limits.pop("cache_tokens", 1024)
        self.plan, self.kept, self._prepare, self._token_seconds = plan, kept or Kept(), prepare, token_seconds
        self._options = RankOptions(str(directory), "float32", plan, 1, CONTEXT, 4, tokens, (), **limits)
        self._stopped, self._resumed = threading.Event(), threading.Event()
        self._pause = 0
        self.lines = [Line() for _ in plan.shards]
        self.heard: list[Event] = []
        self.computed = 0
        """Tokens of all batches."""
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[Any] = self._pool.submit(on_plan, plan, self._rank)

    @property
    def driver(self) -> Line:
        return self.lines[self.plan.driver]

    def _rank(self, world: Group, stage: Group) -> None:
        runner = self.kept.runners.pop(world.rank, None)
        if runner is None:
            runner = StepRunner(self._options, world, stage, open_device("cpu", 1))
        else:
            runner.options = self._options
            runner.rejoin(world, stage)
        trial = replace(warm_up(runner), cache_tokens=self._room, step_seconds=self._token_seconds, ridge=1)
        line = self.lines[world.rank]
        prefixes = open_index(world, self._options, runner.shared, runner.dtype, copies=False)
        keeper = Keeper(runner, SETTINGS, trial, line.send, SECRET, why_not(runner, self._options, trial))
        self._prepare(keeper)
        moved = None if keeper.refusal else keeper.taken_again(self.kept.held.pop(world.rank, None))
        with suppress(FabricError, EngineError):  # the second: the test is done
            if world.rank != self.plan.driver:
                follow(runner, None, keeper)
            else:
                if moved is not None:
                    line.send(learn(prefixes, moved))
                self._drive(runner, line, replace(trial, step_seconds=1e-3), prefixes, keeper)
        keeper.close()
        world.close()
        if keeper.held is not None and keeper.leaves:
            with suppress(EngineError):  # the server is done
                hand_on(keeper.held, cast(Any, line), SETTINGS, SECRET)
        elif keeper.held is not None and keeper.held.parts:
            self.kept.runners[world.rank], self.kept.held[world.rank] = runner, keeper.held

    def _drive(self, runner: StepRunner, line: Line, trial: Any, prefixes: Any, keeper: Keeper) -> None:
        driver = Driver(self._options, runner, cast(Any, line), trial, VOCABULARY, None, prefixes, keeper=keeper)
        run = runner.run

        def counted(batch: Any, features: Any = ()) -> Any:
            self.computed += len(batch.tokens)
            return run(batch, features)

        cast(Any, runner).run = counted
        while not (self._stopped.is_set() or keeper.leaves):
            open_ = driver.scheduler.by_identity.values()
            if self._pause and len(open_) >= self._pause and all(each.generated >= BEGUN for each in open_):
                self._resumed.wait(SECONDS)
            driver.step()
        cast(Any, runner).run = run

    def take(self, wanted: Callable[[Event], bool], line: Line | None = None) -> Any:
        """Hear events until one is ``wanted``."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            event = (line or self.driver).up.get(timeout=SECONDS)
            self.heard.append(event)
            if wanted(event):
                return event
        raise AssertionError(f"nothing came: {self.heard}")

    def begin(self, orders: Sequence[Add]) -> None:
        """Until each of ``orders`` has `BEGUN` tokens or a few more; then it stands still until `hold`."""
        self._pause = len(orders)
        for order in orders:
            self.driver.down.put(order)
        self.take(lambda _: all(len(self.tokens().get(order.id, ())) >= BEGUN for order in orders))

    def hold(self, *leaving: int) -> list[CachesHeld]:
        self.driver.down.put(Hold(leaving))
        self._pause = 0
        self._resumed.set()
        return [self.take(lambda event: isinstance(event, CachesHeld), line) for line in self.lines]

    def take_over(self, before: Session, number: int = 1) -> TakenOver:
        self.driver.down.put(Listen())
        listening = self.take(lambda event: isinstance(event, Listening))
        here, there = self.plan.world_size, before.plan.world_size
        join = Join(number, 0, here + there, listening.addresses)
        self.driver.down.put(TakeOver(join))
        for rank, line in enumerate(before.lines):
            line.down.put(structs.replace(join, first=here + rank))
        return cast(TakenOver, self.take(lambda event: isinstance(event, TakenOver)))

    def tokens(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for event in self.heard:
            if isinstance(event, Tokens):
                for new in event.tokens:
                    found.setdefault(new.id, []).append(new.token)
        return found

    def finish(self, orders: Sequence[Add]) -> None:
        """Until all of ``orders`` have ended."""
        open_ = {order.id for order in orders}

        def last(event: Event) -> bool:
            if isinstance(event, Tokens):
                open_.difference_update(new.id for new in event.tokens if new.finish is not None)
            return not open_

        self.take(last)

    def stop(self) -> None:
        self._stopped.set()
        for line in self.lines:
            line.close()
        self._running.result(timeout=SECONDS)
        self._pool.shutdown()


def go_on(session: Session, orders: Sequence[Add], made: dict[int, list[int]]) -> dict[int, list[int]]:
    """All tokens of ``orders``, of which so many were ``made``; some may have ended before the model moved."""
    left = [order for order in orders if len(made[order.id]) < (order.params.max_tokens or CONTEXT)]
    for order in left:
        session.driver.down.put(Add(order.id, order.prompt, tuple(made[order.id]), order.params))
    session.finish(left)
    return {order.id: made[order.id] + session.tokens().get(order.id, []) for order in orders}
