"""When nothing fits: what is missing on which device, and the nearest thing that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.plan.explain import MANY, NEW_RAIL, joined, one_more
from ferrule.plan.layout import Candidate, Layout, MemoryUse, Stage
from ferrule.plan.question import Question

MORE_HOSTS = 4
"""So many more are tried."""


@dataclass(frozen=True)
class Nearest:
    """What would fit: ``words``, the question that it answers, and the plan."""

    words: str
    question: Question
    candidate: Candidate


@dataclass(frozen=True)
class Shortage:
    """``closest``: the plan that lacks least. ``nearest``: what fits, at most one of each kind."""

    closest: Candidate
    nearest: tuple[Nearest, ...]

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
            f"{name} does not fit: {use.device} needs {use.total / 2**30:.1f} GiB and has {use.room / 2**30:.1f}, "
            f"{self.missing / 2**30:.1f} GiB ({self.missing:,} bytes) too little, in the plan that lacks least",
            needed=use.total,
            available=use.room,
        )


def shortage(question: Question, tried: Sequence[Candidate]) -> Shortage:
    """``tried``: what the search found, none of which fits."""
    closest = _closest(question, tried)
    return Shortage(closest, tuple(_nearest(question, closest)))


def _closest(question: Question, tried: Sequence[Candidate]) -> Candidate:
    """Of these and layers given out by memory what lacks least."""
    tried = list(tried)
    if len(question.cluster.devices) > 1:
        with suppress(PlanError):  # no cables join them
            tried.append(question.predicted(by_memory(question)))
    return max(tried, key=lambda each: min(use.margin for use in each.prediction.memory))


def by_memory(question: Question) -> Layout:
    """A pipeline over the largest devices (at most one per layer), layers in proportion to memory."""
    layers = question.model.layers
    devices = sorted(question.cluster.devices, key=lambda device: -device.memory)[:layers]
    left, room, at, stages = layers, float(sum(device.memory for device in devices)), 0, []
    for place, device in enumerate(devices):
        others = len(devices) - place - 1
        take = min(left - others, max(1, round(left * device.memory / room))) if others else left
        stages.append(Stage((device.name,), at, at + take))
        at, left, room = at + take, left - take, room - device.memory
    return Layout(tuple(stages))


def _nearest(question: Question, closest: Candidate) -> Iterator[Nearest]:
    work = question.work
    tokens = closest.prediction.largest_context
    if tokens >= 1:
        less = replace(question, work=replace(work, context=tokens, prompt=min(work.prompt, tokens)))
        candidate = less.best() or less.predicted(closest.layout)
        if candidate.prediction.fits:
            yield Nearest(f"{tokens:,} tokens of context instead of {work.context:,}", less, candidate)
    if work.concurrency > 1:
        single = replace(question, work=replace(work, concurrency=1))
        if (found := single.best()) is not None:
            yield Nearest(f"one sequence instead of {work.concurrency} at once", single, found)
    for name, model in question.lighter:
        if model.bytes < question.model.bytes and (found := question.of(model).best()) is not None:
            words = f"weights as {name}: {model.bytes / 2**30:.0f} GiB instead of {question.model.bytes / 2**30:.0f}"
            yield Nearest(words, question.of(model), found)
            break
    with_cables = joined(question.cluster)
    if with_cables is not None:
        if (found := question.on(with_cables).best()) is not None:
            yield Nearest(f"{NEW_RAIL.name} to hosts without a cable", question.on(with_cables), found)
    elif len(question.cluster.devices) < MANY:
        yield from _more_hosts(question)


def _more_hosts(question: Question) -> Iterator[Nearest]:
    largest = max(question.cluster.devices, key=lambda device: device.memory)
    cluster = question.cluster
    for count in range(1, MORE_HOSTS + 1):
        cluster = one_more(cluster, largest.name)
        if (found := question.on(cluster).best()) is not None:
            more = "one more host" if count == 1 else f"{count} more hosts"
            yield Nearest(f"{more} like {largest.name}", question.on(cluster), found)
            return
