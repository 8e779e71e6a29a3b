"""Shortage when nothing fits: what is missing on which device, and the nearest things that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ferrule.errors import PlanError
from ferrule.plan.cluster.changes import NEW_RAIL, joined, one_more
from ferrule.plan.cost.predictor import predicted, read_each_token
from ferrule.plan.cut import StageTable, cut_layers
from ferrule.plan.explain.what_if import MANY, quantised_cache
from ferrule.plan.obstacle import obstacle_of
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate, MemoryUse
from ferrule.plan.question import Question
from ferrule.plan.runtime import BUILT_IN_ENGINE, STREAMED
from ferrule.plan.search.best import search
from ferrule.plan.search.stages.costs import Cutting, StageCosts

MORE_HOSTS = 4
"""So many more are tried."""
_MOST_STAGES = 64


@dataclass(frozen=True)
class Nearest:
    """Nearest case that would fit: ``text`` says what is changed, and the question and plan that result."""

    text: str
    question: Question
    candidate: Candidate


@dataclass(frozen=True)
class Shortage:
    """``closest``: the plan that lacks least."""

    question: Question
    closest: Candidate

    @cached_property
    def nearest(self) -> tuple[Nearest, ...]:
        """What fits, at most one of each kind. It is searched for when it is first asked for."""
        return tuple(_nearest(self.question))

    @property
    def use(self) -> MemoryUse:
        """Of the device that lacks most."""
        return min(self.closest.prediction.memory, key=lambda use: use.margin)

    @property
    def missing(self) -> int:
        """Bytes, on that device."""
        return -self.use.margin

    def error(self, name: str) -> PlanError:
        use = self.use
        return PlanError(
            f"{name} does not fit: {use.device} needs {use.needed / 2**30:.1f} GiB and has {use.room / 2**30:.1f}, "
            f"{self.missing / 2**30:.1f} GiB ({self.missing:,} bytes) too little, in the plan that lacks least",
            needed=use.needed,
            available=use.room,
        )


def shortage(question: Question) -> Shortage:
    """Of a question that no plan answers. Raises `PlanError` for one that has an answer."""
    question = replace(question, runnable_only=question.runtime is BUILT_IN_ENGINE)
    answers = search(question)
    if answers.best is not None:
        raise PlanError(f"{question.model.name} fits; nothing is missing")
    attempts = [*answers.candidates, *_along_all_hosts(question)]
    closest = min(attempts, key=lambda one: (_missing(one), len(one.plan.devices), one.plan.devices))
    return Shortage(question, closest)


def _nearest(question: Question) -> Iterator[Nearest]:
    model, cluster, work = question.model, question.cluster, question.work
    longest = search(replace(question.with_work(context=1), objective="context")).best
    if longest is not None:
        context = min(work.context, longest.prediction.largest_context)
        less = question.with_work(context=context, prompt=min(work.prompt, context))
        shorter = search(less).best or longest
        yield Nearest(f"{context:,} tokens of context instead of {work.context:,}", less, shorter)
    if work.concurrency > 1:
        yield from _fitting(f"one sequence instead of {work.concurrency} at once", question.with_work(concurrency=1))
    quantised = quantised_cache(question)
    if quantised is not None:
        yield from _fitting(*quantised)
    for name, lighter in question.lighter:
        sizes = f"{lighter.bytes / 2**30:.0f} GiB instead of {model.bytes / 2**30:.0f}"
        if lighter.bytes < model.bytes and (
            found := list(_fitting(f"weights as {name}: {sizes}", question.of(lighter)))
        ):
            yield from found
            break
    if question.runtime is BUILT_IN_ENGINE and (streamed := streamed_best(question)) is not None:
        yield Nearest(f"--stream-weights auto: {streamed_text(*streamed)}", *streamed)
    with_cables = joined(cluster)
    if with_cables is not None:
        yield from _fitting(f"{NEW_RAIL.name} to hosts without a cable", question.on(with_cables))
    elif len(cluster.devices) < MANY:
        yield from _more_hosts(question)


def streamed_best(question: Question) -> tuple[Question, Candidate] | None:
    """The best plan where weights that do not fit are read from disk, and the question whose answer it is; None where
    no disk was measured, or devices compute that do not read so."""
    if any(device.accelerated for device in question.cluster.devices):
        return None
    streamed = replace(question, runtime=STREAMED, runnable_only=True)
    best = search(streamed).best
    return None if best is None or not read_each_token(streamed, best.plan) else (streamed, best)


def streamed_text(question: Question, candidate: Candidate) -> str:
    """What a plan of `streamed_best` does, for people."""
    read = read_each_token(question, candidate.plan)
    name = max(read, key=lambda each: read[each])
    rate = question.cluster.by_name[name].disk_read or 0.0
    where = f" ({name})" if len(candidate.plan.devices) > 1 else ""
    return (
        f"about {candidate.prediction.tokens_per_s:.2g} tokens/s, since {read[name] / 2**30:.1f} GiB are read with "
        f"every token from a disk of {rate / 1e9:.1f} GB/s{where}"
    )


def _more_hosts(question: Question) -> Iterator[Nearest]:
    host = min(question.cluster.devices, key=lambda device: (-device.memory, device.name)).name
    larger = question.cluster
    for hosts in range(1, MORE_HOSTS + 1):
        larger = one_more(larger, host)
        more = "one more host" if hosts == 1 else f"{hosts} more hosts"
        if found := list(_fitting(f"{more} like {host}", question.on(larger))):
            yield from found
            return


def _fitting(text: str, question: Question) -> Iterator[Nearest]:
    best = search(question).best
    if best is not None:
        yield Nearest(text, question, best)


def _missing(candidate: Candidate) -> int:
    return sum(max(0, -use.margin) for use in candidate.prediction.memory)


def _along_all_hosts(question: Question) -> list[Candidate]:
    """The pipeline over all hosts, the roomiest first, whose worst host misses least."""
    by_name = question.cluster.by_name
    names = sorted(by_name, key=lambda name: (-by_name[name].memory, name))
    names = names[: min(question.model.layers, _MOST_STAGES)]
    costs = StageCosts(question, everywhere=False)
    lacks = []
    for name in names:
        (use,) = costs.memory(Cutting((name,)))
        lacks.append(StageTable(use.by_layer, (), use.always - use.room, use.first, use.last))
    cut = cut_layers(lacks, "max") if len(names) > 1 else None
    if cut is None:
        return []
    spans = zip(names, (0, *cut.ends[:-1]), cut.ends, strict=True)
    plan = Plan(tuple(Cutting((name,)).stage(first, last) for name, first, last in spans))
    plan = replace(plan, obstacle=obstacle_of(question.model, plan))
    if question.runnable_only and plan.obstacle is not None:
        return []
    try:
        return [predicted(question, plan)]
    except PlanError:  # no cables lead from one host to another
        return []
