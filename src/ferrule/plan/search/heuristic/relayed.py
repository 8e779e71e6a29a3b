"""Layouts worth a prediction over a few hosts that relay for each other: a heuristic, then held against a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.cost.runtime import Runtime
from ferrule.plan.layout import Layout, Objective, Workload
from ferrule.plan.search.exact.few import NOT_ALL, Layouts, of_stages
from ferrule.plan.search.exact.space import ExactSearch, Widths
from ferrule.plan.search.heuristic.many import many_hosts
from ferrule.plan.search.stages.costs import Measure, StageCosts

_POOL = 4
_ROUNDING = 1e-6


def frugal_hosts(
    model: ModelSpec, cluster: ClusterSpec, work: Workload, objective: Objective, runtime: Runtime, *, runnable: bool
) -> Layouts:
    """For energy: what a machine draws at rest counts for as long as all others take, so no stage can be judged by
    itself."""
    known = many_hosts(model, cluster, work, objective, runtime, runnable=runnable, pool=_POOL)
    return Layouts(known.found, False, ("the most frugal: found by a heuristic, which may miss the best plan",))


def relayed_hosts(
    model: ModelSpec, cluster: ClusterSpec, work: Workload, objective: Objective, runtime: Runtime, *, runnable: bool
) -> Layouts:
    """Only hosts of a layout relay its messages. If all hosts did, messages would cost no more: what the exact search
    finds then is a bound. Exact where nothing is below what the heuristic found, or what is keeps its promise."""
    known = many_hosts(model, cluster, work, objective, runtime, runnable=runnable, pool=_POOL).found

    def seconds(layout: Layout) -> float:
        try:
            told = predict(model, cluster, layout, work, runtime)
        except PlanError:  # no way from one of its hosts to another
            return math.inf
        if not told.fits:
            return math.inf
        return {"ttft": told.ttft_seconds, "throughput": told.step_seconds}.get(objective, told.token_seconds)

    best = min(map(seconds, known))
    found, exact = list(known), True
    costs = StageCosts(model, cluster, work, runtime, everywhere=True)
    for bound, layout in _below(ExactSearch(costs, runnable=runnable), work, objective, best):
        if bound < best:
            real = seconds(layout)
            exact = exact and (len(layout.stages) == 1 or real <= bound * (1 + _ROUNDING))
            best = min(best, real)
            found.append(layout)
    return Layouts(found, exact, () if exact else (NOT_ALL,))


def _below(search: ExactSearch, work: Workload, objective: Objective, best: float) -> Iterator[tuple[float, Layout]]:
    """What would take less than ``best``: each one-stage layout, and the best pipelines."""
    many, count = objective == "throughput", sum(search.available)
    alone = Measure("prompt" if objective == "ttft" else "token")
    for seconds, missing, layout in search.one_stage(Measure("token", work.concurrency) if many else alone):
        if missing <= 0 and seconds < best:
            yield seconds, layout
    every: list[Widths] = [range(1, count)]
    if search.runnable or count < 3:
        every = [range(width, width + 1) for width in range(1, count // 2 + 1)]
    for widths in every:
        for stages in range(2, count // widths[0] + 1) if many else (0,):
            one = of_stages(search, work, stages, widths, best) if many else search.added(alone, widths, bound=best)
            if one:
                yield one
