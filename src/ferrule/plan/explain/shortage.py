"""When nothing fits: what is missing on which device, and the nearest thing that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.plan.cluster.changes import NEW_RAIL, joined
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.runtime import BUILT_IN_ENGINE
from ferrule.plan.explain.explain import MANY
from ferrule.plan.layout import Candidate, MemoryUse
from ferrule.plan.question import Question
from ferrule.plan.search.shortfall import Shortfall, shortfall

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


def shortage(question: Question) -> Shortage:
    """Of a question that no plan answers."""
    lighter = dict(question.lighter)
    with_cables = joined(question.cluster)
    found = shortfall(
        question.model,
        question.cluster,
        question.work,
        question.objective,
        runtime=question.runtime,
        stored_as=lighter.__getitem__,
        formats=tuple(lighter),
        runnable_only=question.runtime is BUILT_IN_ENGINE,
        more_hosts=MORE_HOSTS if with_cables is None and len(question.cluster.devices) < MANY else 0,
    )
    if found is None:
        raise PlanError(f"{question.model.name} fits; nothing is missing")
    return Shortage(found.attempt, tuple(_nearest(question, found, with_cables)))


def _nearest(question: Question, found: Shortfall, with_cables: ClusterSpec | None) -> Iterator[Nearest]:
    work, lighter = question.work, dict(question.lighter)
    if found.shorter is not None:
        less = replace(question, work=replace(work, context=found.context, prompt=min(work.prompt, found.context)))
        yield Nearest(f"{found.context:,} tokens of context instead of {work.context:,}", less, found.shorter)
    if work.concurrency > 1:
        single = replace(question, work=replace(work, concurrency=1))
        if (alone := single.best()) is not None:
            yield Nearest(f"one sequence instead of {work.concurrency} at once", single, alone)
    if found.lighter is not None:
        model = lighter[found.weights]
        sizes = f"{model.bytes / 2**30:.0f} GiB instead of {question.model.bytes / 2**30:.0f}"
        yield Nearest(f"weights as {found.weights}: {sizes}", question.of(model), found.lighter)
    if with_cables is not None and (cabled := question.on(with_cables).best()) is not None:
        yield Nearest(f"{NEW_RAIL.name} to hosts without a cable", question.on(with_cables), cabled)
    if found.larger is not None and found.cluster is not None:
        more = "one more host" if found.hosts == 1 else f"{found.hosts} more hosts"
        yield Nearest(f"{more} like {found.host}", question.on(found.cluster), found.larger)
