"""Two groups of ranks as threads, one for prompts and one for answers, and what the process that starts them says."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from in_threads import on_plan
from prefix_ranks import CONTEXT, VOCABULARY

from ferrule.config import FabricSettings
from ferrule.engine.devices import open_device
from ferrule.engine.messages import (
    Add,
    Event,
    Hand,
    HandedOver,
    Join,
    Joined,
    Listen,
    Listening,
    NewToken,
    Order,
    Parted,
    Received,
    Tokens,
    Unhanded,
    Wanted,
)
from ferrule.engine.options import ANSWERS, PROMPTS, RankOptions
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.cache.shared import open_index
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.handover.end import HandOverEnd
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.rank.warm_up import warm_up
from ferrule.engine.rank.worker import follow
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError, FabricError
from ferrule.fabric import Group
from ferrule.plan import Plan

SECONDS = 120.0
LOOK_SECONDS = 0.05
SETTINGS = FabricSettings(key=b"k" * 32, calibrate="never", heartbeat=0.0)


class Line:
    """`Control` of a driver, between threads."""

    def __init__(self) -> None:
        self.down: queue.Queue[Order] = queue.Queue()
        self.up: queue.Queue[Event] = queue.Queue()
        self._closed = threading.Event()

    def close(self) -> None:
        """Its end is gone: who looks for orders is told so."""
        self._closed.set()

    def orders(self, wait: float) -> list[Order]:
        found: list[Order] = []
        if self._closed.is_set():
            raise EngineError("the test is done")
        wait = min(wait, LOOK_SECONDS)
        with suppress(queue.Empty):
            found.append(self.down.get(timeout=wait) if wait else self.down.get_nowait())
            while True:
                found.append(self.down.get_nowait())
        return found

    def send(self, event: Event) -> None:
        self.up.put(event)


@dataclass
class Apart:
    """What was answered and said. ``wanted``: by the ranks for answers."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    wanted: list[Wanted] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    handed: list[HandedOver] = field(default_factory=list)
    parted: list[Parted] = field(default_factory=list)

    def took(self, new: NewToken) -> bool:
        self.tokens.setdefault(new.id, []).append(new.token)
        if new.cached is not None:
            self.cached[new.id] = new.cached
        return new.finish is not None


class Groups:
    """``prepare``: called with each rank's end, on its thread. ``devices``: by role, those of ranks that run through
    transformers' modules."""

    def __init__(
        self,
        directory: Path,
        prompts: Plan,
        answers: Plan,
        prepare: Callable[[HandOverEnd], None],
        devices: Mapping[str, str],
        **options: Any,
    ) -> None:
        self._devices = devices
        self._directory, self._options, self._prepare = directory, options, prepare
        self._stop = threading.Event()
        self.lines = {PROMPTS: Line(), ANSWERS: Line()}
        self.plans = {PROMPTS: prompts, ANSWERS: answers}
        self._pool = ThreadPoolExecutor(2)
        self._running = [self._pool.submit(self._run, role) for role in self.plans]

    def _run(self, role: str) -> None:
        plan = self.plans[role]
        limits = {"batch_tokens": 48, **self._options}
        tokens, room = limits.pop("batch_tokens"), limits.pop("cache_tokens", 1024)
        given = RankOptions(str(self._directory), "float32", plan, 1, CONTEXT, 4, tokens, (), hands_over=role, **limits)

        def body(world: Group, stage: Group) -> None:
            runner: Any = StepRunner if role not in self._devices else TorchRunner
            runner = runner(given, world, stage, open_device(self._devices.get(role, "cpu"), 1))
            trial = replace(warm_up(runner), cache_tokens=room)
            line = self.lines[role]
            prefixes = open_index(world, given, runner.shared, runner.dtype, copies=False)
            with HandOverEnd(runner, SETTINGS, line.send, "ab" * 32) as end:
                self._prepare(end)
                if world.rank == plan.driver:
                    driver = Driver(given, runner, cast(Any, line), trial, VOCABULARY, None, prefixes, end=end)
                    while not self._stop.is_set():
                        driver.step()
                else:
                    with suppress(FabricError):
                        follow(runner, end)
            world.close()

        on_plan(plan, body)

    def stop(self) -> None:
        self._stop.set()
        for each in self._running:
            each.result(timeout=SECONDS)
        self._pool.shutdown()

    def join(self, number: int) -> None:
        """Have both groups join hand-over group ``number``."""
        size = sum(plan.world_size for plan in self.plans.values())
        self.lines[ANSWERS].down.put(Listen())
        listening = self.lines[ANSWERS].up.get(timeout=SECONDS)
        while not isinstance(listening, Listening):
            listening = self.lines[ANSWERS].up.get(timeout=SECONDS)
        for role, first in ((ANSWERS, 0), (PROMPTS, self.plans[ANSWERS].world_size)):
            self.lines[role].down.put(Join(number, first, size, listening.addresses))


def answers_apart(
    directory: Path,
    prompts: Plan,
    answers: Plan,
    *turns: Sequence[Add],
    prepare: Callable[[HandOverEnd], None] = lambda end: None,
    deaf: bool = False,
    whole: bool = False,
    devices: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> Apart:
    """What the ranks of ``answers`` say to ``turns``, as `prefix_ranks.answers`, where those of ``prompts`` compute
    prompts. ``deaf``: nobody tells these of it. ``whole``: as of `Hand`."""
    groups = Groups(directory, prompts, answers, prepare, devices, **options)
    found, end = Apart(), time.monotonic() + SECONDS
    asked = {order.id: order for turn in turns for order in turn}
    try:
        groups.join(1)
        while not isinstance(groups.lines[ANSWERS].up.get(timeout=SECONDS), Joined):
            pass
        for turn in turns:
            open_ = {order.id for order in turn}
            for order in turn:
                groups.lines[ANSWERS].down.put(order)
            while open_:
                assert time.monotonic() < end, f"{open_} did not end: {found}"
                with suppress(queue.Empty):
                    event = groups.lines[PROMPTS].up.get_nowait()
                    if isinstance(event, HandedOver):
                        found.handed.append(event)
                with suppress(queue.Empty):
                    _heard(groups, found, groups.lines[ANSWERS].up.get(timeout=0.02), open_, asked, deaf, whole)
        while len(found.handed) < sum(each.blocks == each.wanted for each in found.received):
            event = groups.lines[PROMPTS].up.get(timeout=SECONDS)
            found.handed += [event] if isinstance(event, HandedOver) else []
    finally:
        groups.stop()
    return found


def _heard(
    groups: Groups, found: Apart, event: Event, open_: set[int], asked: dict[int, Add], deaf: bool, whole: bool
) -> None:
    match event:
        case Tokens():
            open_ -= {new.id for new in event.tokens if found.took(new)}
        case Wanted():
            found.wanted.append(event)
            hand = Hand(event.id, event.first, event.last, event.number, whole)
            params = SamplingParams(max_tokens=1, temperature=0.0, adapter=asked[event.id].params.adapter)
            if not deaf:
                prompt = asked[event.id].prompt[: event.last * BLOCK]
                groups.lines[PROMPTS].down.put(Add(event.id, prompt, (), params, hand=hand))
        case Received():
            found.received.append(event)
        case Parted():
            found.parted.append(event)
            for number in open_:
                groups.lines[ANSWERS].down.put(Unhanded(number))
