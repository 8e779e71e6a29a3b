"""Predict what a plan of a model over machines does: time, memory, energy and money. Pure arithmetic.

Every term has its formula and source in docs/planner.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ferrule.plan.cost.apart import joined
from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.interval import interval_of
from ferrule.plan.cost.memory import largest_context, memory_of
from ferrule.plan.cost.messages import announcement, entry_seconds, hop, message_bytes, pieces, word_bytes
from ferrule.plan.cost.stage import Pass, Seconds, StageCost
from ferrule.plan.cost.streaming import FromDisk, from_disk
from ferrule.plan.plan import Plan, Stage
from ferrule.plan.prediction import Candidate, MemoryUse, Prediction, Term, TermKind
from ferrule.plan.question import Question

WRITE_OFF_SECONDS = 3 * 365.25 * 86400
"""Machines are paid for within three years of working without pause."""


def predict(question: Question, plan: Plan) -> Prediction:
    """Also of what does not fit (`Prediction.fits`). Raises `PlanError` where no cables join the devices."""
    if plan.prompts is None:
        return _Predictor(question, plan).prediction()
    one = question.of(replace(question.model, draft=None)).with_work(concurrency=1, context=question.work.prompt)
    first, then = _Predictor(one, plan.prompts).prediction(), _Predictor(question, plan.alone).prediction()
    return joined(question, plan, plan.prompts, first, then)


def read_each_token(question: Question, plan: Plan) -> dict[str, float]:
    """Bytes of weights that a token of one stream reads from disk, by device, of a runtime that reads ahead."""
    predictor = _Predictor(question, plan)
    found = {name: predictor._from_disk(name, missing, 1) for name, missing in predictor.missing.items()}
    return {name: sum(each) for name, each in found.items() if each is not None}


def predicted(question: Question, plan: Plan) -> Candidate:
    """The plan with its prediction; errors as `predict`."""
    return Candidate(plan, predict(question, plan))


@dataclass(frozen=True)
class _StageTime:
    stage: Stage
    seconds: Seconds
    disk: float
    hop: float
    """To the next stage; from the last one back to the first."""
    hop_where: str

    @property
    def busy(self) -> float:
        return self.seconds.total + self.disk


class _Predictor:
    def __init__(self, question: Question, plan: Plan) -> None:
        self.question, self.plan = question, plan
        self.model, self.cluster, self.work = question.model, question.cluster, question.work
        self.runtime = question.runtime
        self.exchange = Exchange(self.cluster, plan.devices)
        others = len(plan.stages) > 1
        self.costs = [StageCost(question, stage, self.exchange, others=others) for stage in plan.stages]

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        uses = memory_of(self.question, self.plan)
        if not self.runtime.streams:
            return uses
        # What does not fit stays on disk.
        return tuple(
            replace(use, weights=use.weights + min(0, use.margin)) if self._may_stream(use) else use for use in uses
        )

    @cached_property
    def missing(self) -> dict[str, int]:
        """Bytes of weights that are on disk, by device."""
        uses = memory_of(self.question, self.plan)
        return {use.device: -use.margin for use in uses if self.runtime.streams and self._may_stream(use)}

    def _may_stream(self, use: MemoryUse) -> bool:
        disk = self.cluster.by_name[use.device].disk_read
        if use.margin >= 0 or not disk or -use.margin >= use.weights:
            return False
        return not self.runtime.reads_ahead or self._from_disk(use.device, -use.margin, 1) is not None

    def _from_disk(self, name: str, missing: int, rows: int) -> FromDisk | None:
        stage = next(each for each in self.plan.stages if name in each.devices)
        share = stage.shares[stage.devices.index(name)]
        return from_disk(self.question.held, stage, share, missing, rows)

    def prediction(self) -> Prediction:
        single = self._times(Pass(1, self.work.seen))
        batches, each = self.question.batches(len(self.plan.stages))
        together = self._times(Pass(1, self.work.seen, each))
        own = self.runtime.step_of(self.model, self.work.concurrency)
        around = self._around(together)
        # With several batches on their way the slowest stage sets the pace, its work for messages included.
        slowest = max(together, key=self._held_up)
        step = max(around, batches * self._held_up(slowest))
        terms = (*self._terms(single), *self._own(1))
        step_terms = terms
        if self.work.concurrency > 1:
            found = self._terms(together) if around >= step else self._pace(slowest, batches)
            step_terms = (*found, *self._own(self.work.concurrency))
        step += own
        prompt_terms = self._prompt()
        watts = self._watts(together, step, batches)
        return Prediction(
            token_seconds=sum(term.seconds for term in terms),
            step_seconds=step if self.work.concurrency > 1 else self._around(single) + own,
            ttft_seconds=sum(term.seconds for term in prompt_terms),
            concurrency=self.work.concurrency,
            memory=self.memory,
            terms=terms,
            prompt_terms=tuple(prompt_terms),
            step_terms=step_terms,
            largest_context=largest_context(self.question, self.plan),
            watts=watts,
            joules=None if watts is None else watts * step / self.work.concurrency,
            dollars_per_million=self._dollars(watts, step),
            interval=interval_of(self.question, self.plan),
            answer=self.work.answer,
        )

    def _times(self, which: Pass) -> list[_StageTime]:
        stages = self.plan.stages
        times = []
        for place, (stage, cost) in enumerate(zip(stages, self.costs, strict=True)):
            seconds = sum(cost.layers(which)[stage.first_layer : stage.last_layer], Seconds())
            if place == 0:
                seconds += cost.first(which)
            if place == len(stages) - 1:
                seconds += cost.last(which)
            hop, where = self._hop(place, which)
            times.append(_StageTime(stage, seconds, self._disk(stage, seconds.total, which), hop, where))
        return times

    def _disk(self, stage: Stage, busy: float, which: Pass) -> float:
        """Seconds for which a stage waits for its disk, beside those in which it is ``busy``."""
        waits = [0.0]
        for name in stage.devices:
            missing, rate = self.missing.get(name, 0), self.cluster.by_name[name].disk_read or 1.0
            read = self._from_disk(name, missing, which.rows) if missing and self.runtime.reads_ahead else None
            if read is None:
                waits.append(missing / rate)
            else:
                waits.append(read.chosen / rate + max(0.0, read.ahead / rate - busy))
        return max(waits)

    def _hop(self, place: int, which: Pass) -> tuple[float, str]:
        """From a stage to the next one; from the last, word of the next step back to the first."""
        stages = self.plan.stages
        if len(stages) == 1:
            return 0.0, ""
        here, there = stages[place], stages[(place + 1) % len(stages)]
        last = place == len(stages) - 1
        layers = there.last_layer - there.first_layer
        size = word_bytes(self.runtime, which) if last else message_bytes(self.question, which, layers)
        seconds, where = hop(self.exchange, here.devices, there.devices, size)
        return seconds + entry_seconds(self.question, there.devices, last=last), where

    def _message_work(self, time: _StageTime) -> float:
        """Of a stage that hands over a batch, when it could be at the next one already."""
        return self.runtime.message_seconds if time.hop_where else 0.0

    def _held_up(self, time: _StageTime) -> float:
        """By one batch."""
        return time.busy + self._message_work(time)

    def _pace(self, slowest: _StageTime, batches: int) -> Iterable[Term]:
        """Of the stage that all batches wait for."""
        own = replace(slowest, hop=self._message_work(slowest))
        return (replace(term, seconds=term.seconds * batches) for term in self._stage_terms(own))

    def _around(self, times: list[_StageTime]) -> float:
        return sum(time.busy + time.hop for time in times) + self._announcement()[0]

    def _announcement(self) -> tuple[float, str]:
        """Ranks of one stage begin when the driver's word has come."""
        if len(self.plan.stages) > 1:
            return 0.0, ""
        return announcement(self.exchange, self.runtime, self.plan.devices)

    def _terms(self, times: list[_StageTime]) -> Iterable[Term]:
        for time in times:
            yield from self._stage_terms(time)
        announcement, where = self._announcement()
        if announcement:
            yield Term("hop", where, announcement)

    def _own(self, sequences: int) -> Iterable[Term]:
        """Of a step of so many, what the engine needs beside devices and cables."""
        own = self.runtime.step_of(self.model, sequences)
        if own:
            yield Term("step", self.plan.devices[0], own)

    def _stage_terms(self, time: _StageTime) -> Iterable[Term]:
        where, seconds = ", ".join(time.stage.devices), time.seconds
        own: tuple[tuple[TermKind, float], ...] = (
            ("weights", seconds.weights),
            ("cache", seconds.cache),
            ("compute", seconds.compute),
            ("launch", seconds.launch),
            ("disk", time.disk),
        )
        yield from (Term(kind, where, value) for kind, value in own if value)
        if seconds.collective:
            yield Term("collective", self.exchange.where(time.stage.devices), seconds.collective)
        if time.hop:
            yield Term("hop", time.hop_where, time.hop)

    def _prompt(self) -> list[Term]:
        """Pieces of a prompt follow one upon another: each needs the cache of those before it on every stage."""
        added: dict[tuple[str, str], Term] = {}
        for piece in pieces(self.question):
            for term in (*self._terms(self._times(piece)), *self._own(1)):
                before = added.get((term.kind, term.where))
                seconds = term.seconds + (before.seconds if before else 0.0)
                added[term.kind, term.where] = replace(term, seconds=seconds)
        return list(added.values())

    def _watts(self, times: list[_StageTime], step: float, batches: int) -> float | None:
        """Of all machines of the plan: idle, and what is more for the part of the time that they are busy."""
        watts = 0.0
        for time in times:
            busy = min(1.0, batches * time.busy / step)
            for name in time.stage.devices:
                device = self.cluster.by_name[name]
                if device.watts_idle is None or device.watts_busy is None:
                    return None
                watts += device.watts_idle + max(0.0, device.watts_busy - device.watts_idle) * busy
        return watts

    def _dollars(self, watts: float | None, step: float) -> float | None:
        """Per million tokens: machines written off within three years, and electricity where its price is known."""
        prices = [self.cluster.by_name[name].price for name in self.plan.devices]
        if any(price is None for price in prices):
            return None
        seconds = 1e6 * step / self.work.concurrency
        dollars = sum(price or 0.0 for price in prices) / WRITE_OFF_SECONDS * seconds
        if self.work.kwh_price is not None:
            if watts is None:
                return None
            dollars += watts * seconds / 3.6e6 * self.work.kwh_price
        return dollars
