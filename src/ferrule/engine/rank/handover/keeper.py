"""A rank's part in a move of the model: it holds what its caches have, or takes over what others hold."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ferrule import fabric
from ferrule.config import FabricSettings
from ferrule.engine.messages import CachesHeld, Event, Join
from ferrule.engine.options import KEPT_SECONDS, STEP_TIMEOUT, RankOptions
from ferrule.engine.rank.batch import Batch, Kind
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.control import Control
from ferrule.engine.rank.driver.pace import RIDGE
from ferrule.engine.rank.handover.exchange import TAKE_TIMEOUT, Exchange, Taker
from ferrule.engine.rank.handover.held_caches import HeldCaches, hold
from ferrule.engine.rank.handover.meeting import open_listener, settings_to_join
from ferrule.engine.rank.runner import Runner
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.warm_up import Trial
from ferrule.errors import EngineError, FerruleError
from ferrule.secure import derived_key

MEET_SECONDS = 15.0
"""In which those that hold caches and those that take them over must have found each other."""

log = logging.getLogger(__name__)


def why_not(runner: Runner, options: RankOptions, trial: Trial) -> str:
    """Why the caches of ranks do not move; empty where they do."""
    if not options.prefix_cache:
        return "without the prefix cache it is not known what the caches hold"
    if not isinstance(runner, StepRunner):
        return "caches of models that run by transformers' modules do not move"
    if options.plan.context > 1:
        return "pages of a prompt lie on several ranks (--cp)"
    if options.hands_over:
        return "prompts are computed by ranks apart (--prefill-tp)"
    return trial.unshared or ""


@dataclass
class Keeper:
    """``settings``: by which the rank met its own group. ``secret``: of `Meet`. ``refusal``: of `why_not`. ``held``:
    for others, once it was told so; ``leaves``: it has to drop all else then."""

    runner: Runner
    settings: FabricSettings
    trial: Trial
    report: Callable[[Event], None]
    secret: str
    refusal: str = ""
    held: HeldCaches | None = None
    leaves: bool = False
    _listener: socket.socket | None = None

    def obey(self, batch: Batch) -> Exchange | None:
        """What ``batch`` says of a move, when all else that it says is done; all ranks call it. What was taken over."""
        if batch.kind is Kind.TAKE and batch.joined is not None:
            return self._take(batch.joined)
        if batch.kind is Kind.HOLD and batch.holding is not None:
            assert isinstance(self.runner, StepRunner)  # else no batch says so
            self.held, self.leaves = hold(self.runner, batch.holding), not batch.holding.leaving
            if not self.leaves:
                self.report(CachesHeld(self.held.size))
        return None

    def listen(self, *, beyond: bool) -> tuple[str, ...]:
        """Where those that hold caches find this rank. Addresses with a port. ``beyond``: as of `Listen`."""
        self.close()
        self._listener, addresses = open_listener(self.settings, beyond=beyond)
        return addresses

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def taken_again(self, held: HeldCaches | None) -> Exchange | None:
        """At the start of ranks of which some were there before: take over what these have ``held``, if anything. All
        ranks call it. Raises the fabric's errors."""
        world = self.runner.world
        any_ = np.array([held is not None], dtype=np.int64)
        world.all_reduce(any_, op="max", timeout=STEP_TIMEOUT)
        if not any_[0]:
            return None
        exchange = Exchange(held, self._taker())
        try:
            exchange.run(world)
        except EngineError as error:  # the same on all ranks
            exchange.reason = str(error)
        self._agree(exchange)
        return exchange

    def _taker(self) -> Taker:
        assert isinstance(self.runner, StepRunner)
        trial = self.trial
        return Taker(self.runner, trial.cache_tokens // BLOCK, trial.step_seconds / (trial.ridge or RIDGE))

    def _take(self, join: Join) -> Exchange:
        world = self.runner.world
        rank = join.first + (world.rank - self.runner.plan.driver) % world.size
        listener, self._listener = (self._listener, None) if rank == 0 else (None, self._listener)
        exchange = Exchange(None, self._taker())
        _meet(exchange, settings_to_join(self.settings, join, rank, listener, _key(self.secret, join)))
        self._agree(exchange)
        return exchange

    def _agree(self, exchange: Exchange) -> None:
        """On what every rank has."""
        done = np.array([exchange.done], dtype=np.int64)
        self.runner.world.all_reduce(done, op="min", timeout=STEP_TIMEOUT)
        exchange.keep(int(done[0]))


def hand_on(held: HeldCaches, control: Control, settings: FabricSettings, secret: str) -> None:
    """Hold caches for those that join, until this process is ended, or for `KEPT_SECONDS`. Raises `EngineError` where
    the process that started it is gone."""
    control.send(CachesHeld(held.size))
    end = time.monotonic() + KEPT_SECONDS
    while (left := end - time.monotonic()) > 0:
        for order in control.orders(left):
            if isinstance(order, Join):
                _meet(Exchange(held, None), settings_to_join(settings, order, order.first, None, _key(secret, order)))


def _key(secret: str, join: Join) -> str:
    """Of the group in which a move takes place; those that hold something and those that go on have ``secret`` from the
    server, each by its own connection."""
    return derived_key(bytes.fromhex(secret), f"move {join.number}")


def _meet(exchange: Exchange, settings: FabricSettings) -> None:
    """Join those that ``settings`` say and exchange with them; ``exchange`` says what became of it."""
    settings = replace(settings, calibrate="never")  # it takes longer than what is sent
    try:
        with fabric.init(settings=settings, timeout=TAKE_TIMEOUT, meet_timeout=MEET_SECONDS) as group:
            exchange.run(group)
            with suppress(FerruleError):
                group.barrier(timeout=TAKE_TIMEOUT)  # all have what was sent
    except (FerruleError, OSError, ValueError) as error:
        exchange.reason = str(error)
        log.info("caches are not handed over: %s", error)
