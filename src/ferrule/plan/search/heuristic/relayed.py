"""Plans worth a prediction over a few hosts that relay for each other: a heuristic, then held against a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ferrule.errors import PlanError
from ferrule.plan.cost.predictor import predict
from ferrule.plan.plan import Plan
from ferrule.plan.question import Question
from ferrule.plan.search.exact.few import NOT_ALL, Plans, of_stages
from ferrule.plan.search.exact.space import ExactSearch, Widths
from ferrule.plan.search.heuristic.many import many_hosts
from ferrule.plan.search.stages.costs import Measure, StageCosts

_POOL = 4
_ROUNDING = 1e-6


def frugal_hosts(question: Question) -> Plans:
    """For energy: what a machine draws at rest counts for as long as all others take, so no stage can be judged by
    itself."""
    known = many_hosts(question, pool=_POOL)
    return Plans(known.found, False, ("the most frugal: found by a heuristic, which may miss the best plan",))


def relayed_hosts(question: Question) -> Plans:
    """Only hosts of a plan relay its messages. If all hosts did, messages would cost no more: what the exact search
    finds then is a bound. Exact where nothing is below what the heuristic found, or what is keeps its promise."""
    known = many_hosts(question, pool=_POOL).found

    def seconds(plan: Plan) -> float:
        try:
            told = predict(question, plan)
        except PlanError:  # no cables from one of its hosts to another
            return math.inf
        if not told.fits:
            return math.inf
        return {"ttft": told.ttft_seconds, "throughput": told.step_seconds}.get(question.objective, told.token_seconds)

    best = min(map(seconds, known))
    found, exact = list(known), True
    for bound, plan in _below(ExactSearch(StageCosts(question, everywhere=True)), best):
        if bound < best:
            real = seconds(plan)
            exact = exact and (len(plan.stages) == 1 or real <= bound * (1 + _ROUNDING))
            best = min(best, real)
            found.append(plan)
    return Plans(found, exact, () if exact else (NOT_ALL,))


def _below(search: ExactSearch, best: float) -> Iterator[tuple[float, Plan]]:
    """Plans that would take less than ``best``: each one-stage plan, and the best pipelines."""
    objective, count = search.question.objective, sum(search.available)
    many = objective == "throughput"
    alone = Measure("prompt" if objective == "ttft" else "token")
    together = Measure("token", search.question.work.concurrency)
    for seconds, missing, plan in search.one_stage(together if many else alone):
        if missing <= 0 and seconds < best:
            yield seconds, plan
    every: list[Widths] = [range(1, count)]
    if count < 3:
        every = [range(width, width + 1) for width in range(1, count // 2 + 1)]
    for widths in every:
        for stages in range(2, count // widths[0] + 1) if many else (0,):
            one = of_stages(search, stages, widths, best) if many else search.added(alone, widths, bound=best)
            if one:
                yield one
