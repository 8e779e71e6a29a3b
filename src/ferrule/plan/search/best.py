"""The best plans for a model over a cluster, by prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.cost.runtime import BUILT_IN_ENGINE, Runtime
from ferrule.plan.layout import OBJECTIVES, Candidate, Layout, Objective, Workload
from ferrule.plan.search.exact.few import Layouts, few_hosts, searched_whole
from ferrule.plan.search.heuristic.many import many_hosts
from ferrule.plan.search.heuristic.relayed import frugal_hosts, relayed_hosts
from ferrule.plan.search.stages.obstacle import obstacle_of

FEW = 8
"""Up to so many hosts the search is exact."""
_NEAR: frozenset[Objective] = frozenset({"energy", "context"})
"""Of these not all layouts are considered."""
_ORDER = ("single", "tensor", "expert", "pipeline", "hybrid")


@dataclass(frozen=True)
class SearchResult:
    """``candidates``: best first, those that do not fit last. ``single``: the best on one host, whether it fits or
    not. ``exact``: no layout of the documented space is better than the first. ``notes``: what was left out."""

    objective: Objective
    candidates: tuple[Candidate, ...]
    single: Candidate
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate | None:
        """None if nothing fits."""
        return next((candidate for candidate in self.candidates if candidate.prediction.fits), None)


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    work: Workload | None = None,
    objective: Objective = "latency",
    *,
    runtime: Runtime = BUILT_IN_ENGINE,
    top: int = 10,
    runnable_only: bool = False,
) -> SearchResult:
    """Rank layouts of ``model`` over ``cluster`` by ``objective``: ``latency`` of one stream, ``throughput`` at
    ``work.concurrency``, ``ttft`` at ``work.prompt``, ``context`` (the largest that fits), ``energy`` per token.

    The ``top`` best, each the best of its kind (so many stages of so many devices): not every way to move one layer
    from host to host. The best one-host layout is always among them. Up to 8 hosts all subsets of hosts, orders and
    cuts are considered; above a heuristic decides (docs/planner.md). ``runnable_only`` leaves out what the built-in
    engine cannot run. The same whatever the order of the hosts in ``cluster``. Raises `PlanError` for an objective
    that is not known, or ``energy`` where a device's watts are not.
    """
    work = work or Workload()
    _check(cluster, objective, top)
    cluster = _in_order(cluster)
    layouts = _finder(cluster, objective)(model, cluster, work, objective, runtime, runnable=runnable_only)
    candidates = _predicted(model, cluster, layouts.found, work, runtime)
    if runnable_only:
        candidates = [candidate for candidate in candidates if candidate.layout.obstacle is None]
    ranked = sorted(candidates, key=lambda candidate: _rank(candidate, objective))
    single = next(candidate for candidate in ranked if candidate.layout.strategy == "single")
    shown = ranked[:top] if single in ranked[:top] else [*ranked[: top - 1], single]
    exact = layouts.exact and objective not in _NEAR and _counts_everything(cluster, runtime)
    return SearchResult(objective, tuple(shown), single, exact, layouts.notes)


def _counts_everything(cluster: ClusterSpec, runtime: Runtime) -> bool:
    """Whether the search counts all that `predict` does: not what is read from disk, messages that grow with the
    layers, and what emulated hosts take from each other on the cores that they share."""
    alone = cluster.cores is None or (cluster.cores >= len(cluster.devices) and cluster.cores_awake == 1.0)
    return alone and not runtime.streams and not runtime.layer_message_bytes


class _Finder(Protocol):
    def __call__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        work: Workload,
        objective: Objective,
        runtime: Runtime,
        *,
        runnable: bool,
    ) -> Layouts: ...


def _finder(cluster: ClusterSpec, objective: Objective) -> _Finder:
    if len(cluster.devices) > FEW:
        return many_hosts
    if objective == "energy":
        return frugal_hosts
    return few_hosts if objective == "context" or searched_whole(cluster) else relayed_hosts


def _in_order(cluster: ClusterSpec) -> ClusterSpec:
    """By name, so that neither the layouts nor their words depend on the order in which hosts were given."""
    links = [replace(link, between=(min(link.between), max(link.between))) for link in cluster.links]
    links.sort(key=lambda link: link.between)
    return replace(cluster, devices=tuple(sorted(cluster.devices, key=lambda device: device.name)), links=tuple(links))


def _check(cluster: ClusterSpec, objective: Objective, top: int) -> None:
    if objective not in OBJECTIVES:
        raise PlanError(f"objective must be one of {', '.join(OBJECTIVES)}, not {objective!r}")
    if top < 1:
        raise PlanError(f"top must be at least 1, not {top}")
    if objective == "energy":
        for device in cluster.devices:
            if device.watts_idle is None or device.watts_busy is None:
                raise PlanError(f"device {device.name}: watts_idle and watts_busy must be known to plan for energy")


def _predicted(
    model: ModelSpec, cluster: ClusterSpec, layouts: Iterable[Layout], work: Workload, runtime: Runtime
) -> list[Candidate]:
    found = []
    for layout in dict.fromkeys(layouts):
        marked = replace(layout, obstacle=obstacle_of(model, layout))
        try:
            found.append(Candidate(marked, predict(model, cluster, marked, work, runtime)))
        except PlanError:  # no cables lead from one of its devices to another
            continue
    return found


def _rank(candidate: Candidate, objective: Objective) -> tuple[float, ...]:
    """The smaller the better; by number and name where all else is equal."""
    layout, prediction = candidate.layout, candidate.prediction
    missing = max(0, *(-use.margin for use in prediction.memory)) if prediction.memory else 0
    goal = {
        "latency": prediction.token_seconds,
        "throughput": prediction.step_seconds / prediction.concurrency,
        "ttft": prediction.ttft_seconds,
        "context": -float(prediction.largest_context),
        "energy": math.inf if prediction.joules is None else prediction.joules,
    }[objective]
    return (float(missing), goal, prediction.token_seconds, len(layout.devices), _ORDER.index(layout.strategy))
