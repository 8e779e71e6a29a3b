"""The best plans for a model over a cluster, by prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predicted
from ferrule.plan.obstacle import obstacle_of
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Objective, Question
from ferrule.plan.runtime import BUILT_IN_ENGINE
from ferrule.plan.search.context import context_plans
from ferrule.plan.search.exact.few import Plans, few_hosts, searched_whole
from ferrule.plan.search.heuristic.many import many_hosts
from ferrule.plan.search.heuristic.relayed import frugal_hosts, relayed_hosts

SEEN = 64
"""So many plans are told, of which a few are shown."""
FEW = 8
"""Up to so many hosts the search is exact."""
_NEAR: frozenset[Objective] = frozenset({"energy", "context", "answer"})
"""Of these not all plans are considered."""
_PROMPT: Objective = "ttft"
_TOKENS: Objective = "latency"
_ORDER = ("single", "tensor", "expert", "context", "pipeline", "hybrid")


@dataclass(frozen=True)
class SearchResult:
    """``candidates``: best first, those that do not fit last. ``single``: the best on one host, whether it fits or
    not. ``exact``: no plan of the documented space is better than the first. ``notes``: what was left out."""

    objective: Objective
    candidates: tuple[Candidate, ...]
    single: Candidate
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate | None:
        """None if nothing fits."""
        return next((candidate for candidate in self.candidates if candidate.prediction.fits), None)


def search(question: Question, *, top: int = SEEN) -> SearchResult:
    """Rank plans of ``question.model`` over its cluster by its objective: ``latency`` of one stream, ``throughput`` at
    ``work.concurrency``, ``ttft`` at ``work.prompt``, ``answer`` (a prompt and ``work.answer`` tokens of one stream),
    ``context`` (the largest that fits), ``energy`` per token.

    The ``top`` best, each the best of its kind (so many stages of so many devices): not every way to move one layer
    from host to host. The best one-host plan is always among them. Up to 8 hosts all subsets of hosts, orders and
    cuts are considered; above a heuristic decides (docs/planner.md). Beside these, where one host has no room for the
    context, or that is the objective, plans whose hosts share out keys and values by pages. The same whatever the order
    of the hosts in the cluster. Raises `PlanError` for ``energy`` where a device's watts are not known.
    """
    _check(question, top)
    question = question.on(_in_order(question.cluster))
    plans = _plans(question)
    found = _predicted(question, plans.found)
    alone = [each for each in found if each.plan.strategy == "single"]
    single = min(alone, key=lambda candidate: rank(candidate, question.objective))
    if question.objective == "context" or not single.prediction.fits:
        found += _predicted(question, context_plans(question))
    shown = ranked(found, single, question.objective, top)
    exact = plans.exact and question.objective not in _NEAR and _counts_everything(question)
    return SearchResult(question.objective, shown, single, exact, plans.notes)


def ranked(
    found: Iterable[Candidate], single: Candidate, objective: Objective, top: int = SEEN
) -> tuple[Candidate, ...]:
    """The ``top`` best, the best first, with ``single`` among them."""
    ordered = sorted(found, key=lambda candidate: rank(candidate, objective))
    return tuple(ordered[:top] if single in ordered[:top] else [*ordered[: top - 1], single])


def best_plan(question: Question) -> Candidate | None:
    """The best plan that fits, one that the built-in engine can run where the question is about that; None: none."""
    return search(replace(question, runnable_only=question.runtime is BUILT_IN_ENGINE)).best


def _counts_everything(question: Question) -> bool:
    """Whether the search counts all that `predict` does: not what is read from disk, messages that grow with the
    layers, and what emulated hosts take from each other on the cores that they share."""
    cluster, runtime = question.cluster, question.runtime
    alone = cluster.cores is None or (cluster.cores >= len(cluster.devices) and cluster.cores_awake == 1.0)
    return alone and not runtime.streams and not runtime.layer_message_bytes


def _plans(question: Question) -> Plans:
    """Those worth a prediction. Of an answer, which is a prompt and tokens: those that are best in either."""
    if question.objective != "answer":
        return _finder(question)(question)
    prompt, tokens = (_plans(replace(question, objective=each)) for each in (_PROMPT, _TOKENS))
    return Plans([*tokens.found, *prompt.found], exact=False, notes=tokens.notes)


def _finder(question: Question) -> Callable[[Question], Plans]:
    if len(question.cluster.devices) > FEW:
        return many_hosts
    if question.objective == "energy":
        return frugal_hosts
    return few_hosts if question.objective == "context" or searched_whole(question.cluster) else relayed_hosts


def _in_order(cluster: ClusterSpec) -> ClusterSpec:
    """By name, so that neither the plans nor their words depend on the order in which hosts were given."""
    pairs = [replace(pair, between=(min(pair.between), max(pair.between))) for pair in cluster.pairs]
    pairs.sort(key=lambda pair: pair.between)
    return replace(cluster, devices=tuple(sorted(cluster.devices, key=lambda device: device.name)), pairs=tuple(pairs))


def _check(question: Question, top: int) -> None:
    if top < 1:
        raise PlanError(f"top must be at least 1, not {top}")
    if question.objective == "energy":
        for device in question.cluster.devices:
            if device.watts_idle is None or device.watts_busy is None:
                raise PlanError(f"device {device.name}: watts_idle and watts_busy must be known to plan for energy")


def _predicted(question: Question, plans: Iterable[Plan]) -> list[Candidate]:
    found = []
    for plan in dict.fromkeys(plans):
        marked = replace(plan, obstacle=obstacle_of(question.model, plan))
        if question.runnable_only and marked.obstacle is not None:
            continue
        try:
            found.append(predicted(question, marked))
        except PlanError:  # no cables lead from one of its devices to another
            continue
    return found


def rank(candidate: Candidate, objective: Objective) -> tuple[float, ...]:
    """The smaller the better. Of those that are alike in what is asked one is better whose prompts others compute: its
    first token comes sooner (`search.apart` finds no others). Then number and name decide."""
    plan, prediction = candidate.plan, candidate.prediction
    missing = max(0, *(-use.margin for use in prediction.memory)) if prediction.memory else 0
    goal = {
        "latency": prediction.token_seconds,
        "throughput": prediction.step_seconds / prediction.concurrency,
        "ttft": prediction.ttft_seconds,
        "answer": prediction.answer_seconds,
        "context": -float(prediction.largest_context),
        "energy": math.inf if prediction.joules is None else prediction.joules,
    }[objective]
    first = prediction.ttft_seconds if plan.prompts is not None else math.inf
    return (float(missing), goal, prediction.token_seconds, first, len(plan.devices), _ORDER.index(plan.strategy))
