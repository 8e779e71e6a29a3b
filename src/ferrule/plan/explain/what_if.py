"""Changes that would make a plan faster: by predicting again with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ferrule.errors import ConfigError
from ferrule.model.kv_cache import kept_in
from ferrule.plan.cluster.changes import one_more
from ferrule.plan.cluster.spec import ClusterSpec, PairSpec, RailSpec
from ferrule.plan.cost.predictor import predicted
from ferrule.plan.explain.bottleneck import BottleneckKind
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Question
from ferrule.plan.runtime import BUILT_IN_ENGINE
from ferrule.plan.search.best import best_plan

RDMA_SECONDS = 8e-6
"""A small message by RDMA over USB4, from program to program (`ferrule lab profiles`: usb4-40g-rdma)."""
CABLE_SECONDS = 1e-3
"""Longest latency of a cable that could carry RDMA."""
MENTIONED = 0.01
"""Least improvement, as a part, that is worth a line."""
_CABLES: frozenset[BottleneckKind] = frozenset({"latency", "bandwidth", "hop"})
_WAITING: frozenset[BottleneckKind] = frozenset({"latency", "hop"})
_BYTES: frozenset[BottleneckKind] = frozenset({"weights", "disk"})
_CACHE: frozenset[BottleneckKind] = frozenset({"cache"})
_SHARED: frozenset[BottleneckKind] = frozenset({"weights", "cache", "compute", "disk"})
_ORDINALS = {2: "second", 3: "third", 4: "fourth"}
MANY = 8
"""With more hosts than these one more host or one more cable is no answer."""


@dataclass(frozen=True)
class WhatIf:
    """``before`` and ``after``: the objective's figure of the plan as it is, and with the change. ``times``: how many
    times better that is. ``helps``: the kinds of bottleneck that the change is about."""

    text: str
    before: float
    after: float
    times: float
    helps: frozenset[BottleneckKind]


def what_ifs(question: Question, candidate: Candidate, split: Candidate | None = None) -> list[WhatIf]:
    """Changes that would make the plan better by its objective, the most helpful first.

    Lighter weights and a lighter cache change the world under the same plan; so do cables and RDMA, under that of
    ``split`` where the plan is for one machine. With one more host the best plan that uses it is looked for.
    """
    return sorted(_changes(question, candidate, split or candidate), key=lambda each: -each.times)


def _changes(question: Question, candidate: Candidate, split: Candidate) -> Iterator[WhatIf]:
    plan, cluster = candidate.plan, question.cluster
    linked = plan if len(plan.all_devices) > 1 else split.plan
    for change, helps in ((another_cable(cluster, linked), _CABLES), (by_rdma(cluster, linked), _WAITING)):
        if change is not None:
            text, changed = change
            yield from _compared(question, candidate, predicted(question.on(changed), linked), text, helps)
    for name, model in question.lighter:
        if model.bytes < question.model.bytes * 0.9:
            after = predicted(question.of(model), plan)
            yield from _compared(question, candidate, after, f"with weights as {name}", _BYTES)
            break
    quantised = quantised_cache(question)
    if quantised is not None:
        text, changed_question = quantised
        yield from _compared(question, candidate, predicted(changed_question, plan), f"with {text}", _CACHE)
    if set(plan.devices) == set(cluster.by_name) and len(plan.devices) < MANY:
        name = plan.devices[0]
        more = best_plan(question.on(one_more(cluster, name)))
        if more is not None and len(more.plan.devices) > len(plan.devices):
            yield from _compared(question, candidate, more, f"with one more host like {name}", _SHARED)


def _compared(
    question: Question, now: Candidate, then: Candidate, text: str, helps: frozenset[BottleneckKind]
) -> Iterator[WhatIf]:
    times = question.times_better(then.prediction, now.prediction)
    before, after = question.value(now.prediction), question.value(then.prediction)
    if times is not None and before is not None and after is not None and times >= 1 + MENTIONED:
        yield WhatIf(text, before, after, times, helps)


def quantised_cache(question: Question) -> tuple[str, Question] | None:
    """Keys and values in 8 bits; None where they are quantised already, or cannot be."""
    if question.runtime is not BUILT_IN_ENGINE or question.model.cache_bits:
        return None
    try:
        return "keys and values in 8 bits (--kv-cache int8)", question.of(kept_in(question.model, "int8"))
    except ConfigError:
        return None


def another_cable(cluster: ClusterSpec, plan: Plan) -> tuple[str, ClusterSpec] | None:
    """One more cable between the slowest pair of the plan's devices, or between all that are as slow."""
    pairs = cluster.among(plan.all_devices).pairs
    if not pairs or len(plan.all_devices) > MANY:
        return None
    slowest = min(pair.bandwidth for pair in pairs)
    those = {pair.name for pair in pairs if pair.bandwidth <= slowest * 1.01}

    def doubled(pair: PairSpec) -> PairSpec:
        best = max(pair.rails, key=lambda rail: rail.bandwidth)
        return replace(pair, rails=(*pair.rails, replace(best, name=f"{best.name}+")))

    changed = tuple(doubled(pair) if pair.name in those else pair for pair in cluster.pairs)
    first = next(pair for pair in pairs if pair.name in those)
    which = _ORDINALS.get(len(first.rails) + 1, "further")
    where = f"on {first.name}" if len(those) == 1 else f"on each of {len(those)} pairs"
    return f"with a {which} cable {where}", replace(cluster, pairs=changed)


def by_rdma(cluster: ClusterSpec, plan: Plan) -> tuple[str, ClusterSpec] | None:
    """The latency of RDMA on every cable between devices of the plan that TCP uses now."""
    pairs = cluster.among(plan.all_devices).pairs
    slow = [rail for pair in pairs for rail in pair.rails if _could_be_rdma(rail)]
    if not slow:
        return None
    names = {pair.name for pair in pairs}
    changed = tuple(
        replace(pair, rails=tuple(replace(r, alpha=RDMA_SECONDS) if _could_be_rdma(r) else r for r in pair.rails))
        if pair.name in names
        else pair
        for pair in cluster.pairs
    )
    now = max(rail.alpha for rail in slow) * 1e6
    text = f"with RDMA instead of TCP ({RDMA_SECONDS * 1e6:.0f} µs a message, now {now:.0f})"
    return text, replace(cluster, pairs=changed)


def _could_be_rdma(rail: RailSpec) -> bool:
    return rail.transport == "tcp" and RDMA_SECONDS < rail.alpha < CABLE_SECONDS
