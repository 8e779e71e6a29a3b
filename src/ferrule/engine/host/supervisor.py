"""Keep the ranks of a model running: start them, notice how they end, and start them again while that helps."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ferrule.engine.host.migration import MigrationMonitor
from ferrule.engine.host.moving import held_by, take_over, tell
from ferrule.engine.host.placement import Deployment, Loss, Planner, RankStarter
from ferrule.engine.host.ranks import Ranks
from ferrule.engine.host.restart_policy import RestartPolicy, pause
from ferrule.engine.host.starting import RanksLostError, Running, Served, Start
from ferrule.engine.messages import Order
from ferrule.engine.options import MEET_TIMEOUT, RETURN_TIMEOUT, RankOptions
from ferrule.engine.types import Recovery, State
from ferrule.errors import EngineError, FerruleError, ModelUnavailable
from ferrule.plan import Plan

MOST_PROVEN = 8
"""Sets of ranks of which it is remembered that they passed the self-test."""
END_SECONDS = 0.1
"""Grace for the ranks that are left when one is lost: what they had to say has been heard."""
MOST_PATIENCE = 30.0
"""Seconds."""

_log = logging.getLogger(__name__)


class RankSupervisor:
    """States: loading → ready → recovering → ready, or waiting while the model cannot be held, or failed; closed."""

    def __init__(
        self,
        options: RankOptions,
        planner: Planner,
        served: Served,
        clock: Callable[[], float] = time.monotonic,
        secret: str = "",
    ) -> None:
        self.state: State = "loading"
        self.error: FerruleError | None = None
        self.since = time.time()
        self.recoveries = 0
        self.last: Recovery | None = None
        self.note = ""
        """Of the deployment that runs (`Deployment.note`)."""
        self.moving = False
        """Whether it is away only because it moves to a better place."""
        self.options, self._planner, self._served, self._clock = options, planner, served, clock
        self._restarts, self._secret = RestartPolicy(), secret or secrets.token_hex(32)
        self._moves = itertools.count(1)
        self._ranks: Ranks | None = None
        self._task: asyncio.Task[None] | None = None
        self._deployment: Deployment | None = None
        self._proven: list[tuple[RankStarter, Plan, str]] = []
        self._migration = MigrationMonitor(planner, options, served.idle, clock)
        self._load_seconds = 0.0

    async def start(self) -> None:
        """Wait until every rank is ready. Raises the first cause where one fails; no process is left then."""
        try:
            ranks = await self._bring_up(None, MEET_TIMEOUT)
        except RanksLostError as error:
            raise error.loss.error from None
        self._task = asyncio.create_task(self._keep(ranks), name="supervisor")

    def send(self, message: Order) -> None:
        """To the driver; nothing happens while there is none."""
        if self._ranks is not None:
            self._ranks.send(message)

    async def close(self) -> None:
        """Stop every rank. Safe to call twice."""
        if self.state == "closed":
            return
        self._enter("closed", None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._deployment is not None and self._deployment.standby is not None:
            await self._deployment.standby.close()
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            await ranks.stop(0.3)

    async def _bring_up(self, loss: Loss | None, patience: float) -> Ranks:
        return await self._launch(await self._planner.place(self.options, loss), patience)

    async def _launch(self, deployment: Deployment, patience: float, before: Ranks | None = None) -> Ranks:
        """``before``: hold what caches had."""
        begun = self._clock()
        self._planner.chosen(deployment)
        if self.state == "waiting":
            self._enter("recovering", self.error)
        old = None if self._deployment is None else self._deployment.standby
        if old is not None and old is not deployment.standby:
            await old.close()
        self._deployment = deployment
        options = self._to_start(deployment, patience)
        start = Start(options.plan, self._served)
        ranks = await Ranks.start(deployment.starter, options, start.heard, self._secret)
        try:
            await start.done(ranks)
            if before is not None:
                await take_over(before, ranks, start, next(self._moves))
        except BaseException:
            await ranks.stop(END_SECONDS)
            raise
        self._load_seconds = self._clock() - begun
        self._went_up(ranks, deployment, start.running)
        return ranks

    def _to_start(self, deployment: Deployment, patience: float) -> RankOptions:
        """What its ranks are told: no self-test where one ran on the same hosts and devices, as it has nothing new to
        find."""
        options = deployment.options
        return replace(
            options,
            meet_seconds=patience,
            self_test=options.self_test and _place_of(deployment) not in self._proven,
            copies_left=self.options.copies_left,
        )

    def _went_up(self, ranks: Ranks, deployment: Deployment, running: Running) -> None:
        self._ranks, self._deployment, place = ranks, deployment, _place_of(deployment)
        self._proven = [*[each for each in self._proven if each != place][1 - MOST_PROVEN :], place]
        if deployment.note and deployment.note != self.note:
            _log.warning("%s", deployment.note)
        self.note = deployment.note
        self._enter("ready", None)
        going_on = self._served.went_up(running)
        if self.last is not None and self.last.requests is None:
            self._report(going_on)

    async def _keep(self, ranks: Ranks) -> None:
        try:
            while True:
                ended = await self._run(ranks)
                if isinstance(ended, Loss):
                    ranks = await self._recover(ranks, ended)
                else:
                    ranks = await self._move(ranks, ended)
        except FerruleError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - requests must not wait for a supervisor that is gone
            _log.exception("the supervisor of the model's ranks failed")
            self._fail(EngineError(f"{type(error).__name__}: {error}; please report this with the server's log"))

    async def _run(self, ranks: Ranks) -> Loss | Deployment:
        """Until a rank is lost, or the model should move to another deployment."""
        assert self._deployment is not None
        lost = asyncio.create_task(ranks.lost())
        migrating = asyncio.create_task(
            self._migration.until_better(self._deployment, self._load_seconds), name="migrating"
        )
        try:
            await asyncio.wait([lost, migrating], return_when=asyncio.FIRST_COMPLETED)
            return lost.result() if lost.done() else migrating.result()
        finally:
            lost.cancel()
            migrating.cancel()
            await asyncio.gather(migrating, return_exceptions=True)

    async def _recover(self, ranks: Ranks, loss: Loss) -> Ranks:
        self.last = Recovery(str(loss.error), time.time())
        self._go_down(loss)
        renewed = False
        try:
            self._check_hope(loss)
            try:
                renewed = await self._renew(ranks, loss)
            except RanksLostError as error:
                loss = error.loss
                self._check_hope(loss)
        finally:
            if not renewed:
                await ranks.stop(END_SECONDS)
        return ranks if renewed else await self._bring_back(loss)

    async def _renew(self, ranks: Ranks, loss: Loss) -> bool:
        """Whether the ranks that are left go on with what they have loaded, and others have taken the places of those
        that are lost. Raises `RanksLostError` where more are lost meanwhile, and what is final."""
        assert self._deployment is not None
        now = self._deployment
        size = now.options.plan.world_size
        if size == 1:
            return False
        leaving = asyncio.create_task(ranks.left(self._patience))
        try:
            found = await self._planner.keeping(self.options, now, loss)
            if found is None:
                return False
            kept = await leaving
        finally:
            leaving.cancel()
        if not kept or (loss.crashed and len(kept) == size):
            return False
        return await self._go_on(ranks, kept, found)

    @property
    def _patience(self) -> float:
        """Seconds that are well spent on a rank that is in the midst of a long step: loading anew takes longer."""
        return min(MOST_PATIENCE, self._load_seconds / 2)

    async def _go_on(self, ranks: Ranks, kept: frozenset[int], found: Deployment) -> bool:
        """Whether those that are ``kept`` go on as ``found``, with others in the places of those that are not. Raises
        `RanksLostError` where a rank is lost meanwhile."""
        options = self._to_start(found, RETURN_TIMEOUT)
        start = Start(options.plan, self._served)
        try:
            await ranks.renew(kept, replace(found, options=options), start.heard)
            await start.done(ranks)
        except (EngineError, RanksLostError) as error:
            _log.warning("the ranks that were left could not go on with others, so all start again: %s", error)
            if isinstance(error, RanksLostError):
                raise
            return False
        if found is not self._deployment:
            self._planner.chosen(found)
        if self.last is not None and self.last.requests is None:
            self.last = replace(self.last, kept=tuple(sorted(kept)))
        if start.taken is not None:
            tell(start.taken)
        self._went_up(ranks, found, start.running)
        return True

    async def _move(self, ranks: Ranks, better: Deployment) -> Ranks:
        """Back to the deployment that ran, where the better one does not start."""
        before, begun = self._deployment, self._clock()
        assert before is not None
        self.moving, shifted = True, False
        try:
            elsewhere = before.starter.moved(better.starter) if better.options == before.options else None
            holds = await held_by(ranks, elsewhere or (), self._patience)
            self._go_down(Loss(EngineError("the model moves to a better place"), (), (), crashed=False))
            shifted = bool(elsewhere) and await self._shift(ranks, better, elsewhere or ())
            if shifted:
                _log.info("ranks of the model moved to a better place within %.1f s", self._clock() - begun)
                return ranks
            holding = ranks if holds and not elsewhere else None
            if holding is None:
                await ranks.stop(END_SECONDS)
            return await self._launch_or_go_back(before, better, holding, begun)
        finally:
            self.moving = False
            if not shifted:
                await ranks.stop(END_SECONDS)

    async def _launch_or_go_back(
        self, before: Deployment, better: Deployment, holding: Ranks | None, begun: float
    ) -> Ranks:
        """``holding``: those that hold what caches had, where there are any."""
        try:
            moved = await self._launch(better, RETURN_TIMEOUT, holding)
        except (FerruleError, RanksLostError) as error:
            _log.warning("the model could not move to a better place, so it goes back: %s", error)
            self._migration.failed(better)
        else:
            _log.info("the model moved to a better place within %.1f s", self._clock() - begun)
            return moved
        try:
            return await self._launch(before, RETURN_TIMEOUT, holding)
        except ModelUnavailable as error:
            loss = Loss(error, (), (), crashed=False)
        except RanksLostError as error:
            loss = error.loss
        self.last = Recovery(str(loss.error), time.time())
        self._check_hope(loss)
        return await self._bring_back(loss)

    async def _shift(self, ranks: Ranks, better: Deployment, elsewhere: Sequence[int]) -> bool:
        """Whether only those ranks have moved that the better deployment has ``elsewhere``, and the others kept what
        they had loaded; else all are ended, or are to be."""
        try:
            kept = await ranks.part(elsewhere, self._patience)
            return bool(kept) and await self._go_on(ranks, kept, better)
        except RanksLostError:
            return False

    def _go_down(self, loss: Loss) -> None:
        self._ranks = None
        self._enter("recovering", loss.error)
        if self._served.went_down(loss):
            self._restarts.explained()

    def _check_hope(self, loss: Loss) -> None:
        """Note a loss. Raises an error where no start helps."""
        reason = self._restarts.hopeless(loss, self._clock())
        if reason is not None:
            raise EngineError(reason)

    async def _bring_back(self, loss: Loss) -> Ranks:
        """After a loss that was noted. Raises the error for which the model fails."""
        attempt, patience = 0, RETURN_TIMEOUT
        while True:
            while True:
                await asyncio.sleep(pause(attempt))
                attempt += 1
                try:
                    return await self._bring_up(loss, patience)
                except ModelUnavailable as error:
                    self._wait(error)
                except RanksLostError as error:
                    loss = error.loss
                    self._check_hope(loss)
                    patience = min(2 * patience, MEET_TIMEOUT)
                    break
            if not loss.crashed:
                self._wait(loss.error)

    def _wait(self, error: FerruleError) -> None:
        if self.state != "waiting":
            cause = self.last.cause if self.last else ""
            _log.warning("%s; the model cannot come back yet: %s", cause, error)
        self._enter("waiting", error)

    def _fail(self, error: FerruleError) -> None:
        self._enter("failed", error)
        self._served.failed(error)

    def _enter(self, state: State, error: FerruleError | None) -> None:
        if self.state == "closed":
            return
        if state != self.state:
            self.since = time.time()
        self.state, self.error = state, error

    def _report(self, going_on: int) -> None:
        assert self.last is not None
        self.recoveries += 1
        self.last = replace(self.last, seconds=time.time() - self.last.at, requests=going_on)
        kept = f" (rank {' and '.join(map(str, self.last.kept))} kept what it had loaded)" if self.last.kept else ""
        _log.warning(
            "%s; the model is back after %.1f s%s, and %d interrupted requests go on",
            self.last.cause,
            self.last.seconds,
            kept,
            going_on,
        )


def _place_of(deployment: Deployment) -> tuple[RankStarter, Plan, str]:
    return deployment.starter, deployment.options.plan, deployment.options.device
