"""Tokens per second over the number of hosts, the latency of cables, or the context: predicted point by point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.plan import BUILT_IN_ENGINE, Candidate, Plan, Question, predicted, search
from ferrule.plan.cluster.changes import with_rails

LATENCIES = tuple(1e-6 * 10 ** (step / 8) for step in range(25))
"""From 1 µs, less than any cable has, to 1 ms."""
ONE_BY_ONE = 8
"""So many hosts are added one by one, then twice as many each time."""
MOST_HOSTS = 64
_STEPS = 24
_LEAST_CONTEXT = 512


@dataclass(frozen=True)
class Curve:
    """``points``: (hosts, seconds or tokens; tokens per second), in order; none where it does not fit."""

    name: str
    points: tuple[tuple[float, float], ...]


def over_hosts(question: Question) -> list[Curve]:
    """The best plan of each strategy over exactly so many hosts, taken in the order of the cluster."""
    names = [device.name for device in question.cluster.devices][:MOST_HOSTS]
    points: dict[str, list[tuple[float, float]]] = {}
    for count in _counts(len(names)):
        fewer = question.on(question.cluster.among(names[:count]))
        for strategy, best in _by_strategy(_candidates(fewer), count):
            points.setdefault(strategy, []).append((float(count), _rate(question, best)))
    return [Curve(name, tuple(found)) for name, found in points.items()]


def _counts(most: int) -> list[int]:
    counts = [*range(1, min(most, ONE_BY_ONE) + 1)]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts


def over_latency(question: Question) -> list[Curve]:
    """Today's best plan of each strategy, if every cable had this latency."""
    if not question.cluster.pairs:
        raise PlanError("nothing to draw over latency: the cluster has no links")
    return [
        Curve(
            _label(best.plan),
            tuple(
                (alpha, _rate(question, predicted(_with_latency(question, alpha), best.plan))) for alpha in LATENCIES
            ),
        )
        for _, best in _by_strategy(_candidates(question))
    ]


def _with_latency(question: Question, alpha: float) -> Question:
    return question.on(with_rails(question.cluster, lambda rail: replace(rail, alpha=alpha)))


def over_context(question: Question) -> list[Curve]:
    """Today's best plan of each strategy, a token after so many others in each sequence, as far as there is room."""
    most = max(_LEAST_CONTEXT, question.model.max_context)
    ratio = (most / _LEAST_CONTEXT) ** (1 / _STEPS)
    depths = sorted({round(_LEAST_CONTEXT * ratio**step) for step in range(_STEPS + 1)})
    curves = []
    for _, best in _by_strategy(_candidates(question)):
        depths_of = [depth for depth in depths if depth < best.prediction.largest_context]
        if 0 < best.prediction.largest_context <= most and depths_of:
            depths_of.append(best.prediction.largest_context - 1)  # where its memory ends
        points = tuple((float(depth), _rate(question, _at_depth(question, best.plan, depth))) for depth in depths_of)
        curves.append(Curve(_label(best.plan), points))
    return [curve for curve in curves if curve.points]


def _at_depth(question: Question, plan: Plan, depth: int) -> Candidate:
    return predicted(replace(question, work=replace(question.work, context=depth + 1, prompt=1, depth=depth)), plan)


def _candidates(question: Question) -> tuple[Candidate, ...]:
    return search(replace(question, runnable_only=question.runtime is BUILT_IN_ENGINE)).candidates


def _by_strategy(candidates: Iterable[Candidate], count: int | None = None) -> Iterator[tuple[str, Candidate]]:
    """The first of each strategy that fits, over exactly ``count`` hosts if that is given."""
    seen = set()
    for each in candidates:
        plan = each.plan
        if each.prediction.fits and plan.strategy not in seen and count in (None, len(plan.devices)):
            seen.add(plan.strategy)
            yield plan.strategy, each


def _label(plan: Plan) -> str:
    count = len(plan.devices)
    return f"{plan.devices[0]} alone" if count == 1 else f"{plan.strategy}, {count} hosts"


def _rate(question: Question, candidate: Candidate) -> float:
    prediction = candidate.prediction
    return prediction.throughput if question.work.concurrency > 1 else prediction.tokens_per_s
