"""When nothing fits: how much memory is missing, and the nearest things that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.changes import one_more
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.cost.runtime import BUILT_IN_ENGINE, Runtime
from ferrule.plan.layout import Candidate, Layout, Objective, Workload
from ferrule.plan.search.best import search
from ferrule.plan.search.stages.costs import Cutting, StageCosts
from ferrule.plan.search.stages.cut import StageTable, cut_layers
from ferrule.plan.search.stages.obstacle import obstacle_of

LIGHTER = ("int8", "int4")
_MOST_STAGES = 64


@dataclass(frozen=True)
class Shortfall:
    """``attempt``: the layout that misses least, and ``missing``: how many bytes on its devices together. What would
    fit, or None where that does not help: ``shorter``, with ``context`` tokens for each sequence; ``lighter``, with
    weights as ``weights``; ``larger``, with so many ``hosts`` more like ``host``, in ``cluster``."""

    attempt: Candidate
    missing: int
    shorter: Candidate | None = None
    context: int = 0
    lighter: Candidate | None = None
    weights: str = ""
    larger: Candidate | None = None
    host: str = ""
    hosts: int = 0
    cluster: ClusterSpec | None = None


def shortfall(
    model: ModelSpec,
    cluster: ClusterSpec,
    work: Workload | None = None,
    objective: Objective = "latency",
    *,
    runtime: Runtime = BUILT_IN_ENGINE,
    stored_as: Callable[[str], ModelSpec] | None = None,
    formats: Sequence[str] = LIGHTER,
    runnable_only: bool = False,
    more_hosts: int = 1,
) -> Shortfall | None:
    """None where something fits. ``stored_as``: the model with other weights, one of ``formats`` (the first that fits
    is told), such as ``lambda weights: read_model(name, weights=weights)``. ``more_hosts``: up to so many are tried.
    """
    work = work or Workload()

    def best(model: ModelSpec, cluster: ClusterSpec, work: Workload) -> Candidate | None:
        return search(model, cluster, work, objective, runtime=runtime, runnable_only=runnable_only).best

    result = search(model, cluster, work, objective, runtime=runtime, runnable_only=runnable_only)
    if result.best is not None:
        return None
    attempts = [*result.candidates, *_along_all_hosts(model, cluster, work, runtime)]
    if runnable_only:
        attempts = [attempt for attempt in attempts if attempt.layout.obstacle is None]
    attempt = min(attempts, key=lambda one: (_missing(one), len(one.layout.devices), one.layout.devices))
    found = Shortfall(attempt, _missing(attempt))
    least = replace(work, context=1)
    longest = search(model, cluster, least, "context", runtime=runtime, runnable_only=runnable_only).best
    if longest is not None:
        context = min(work.context, longest.prediction.largest_context)
        found = replace(found, shorter=best(model, cluster, replace(work, context=context)) or longest, context=context)
    for weights in formats if stored_as else ():
        other = stored_as(weights) if stored_as else model
        if other.bytes < model.bytes and (lighter := best(other, cluster, work)):
            found = replace(found, lighter=lighter, weights=weights)
            break
    host = min(cluster.devices, key=lambda device: (-device.memory, device.name)).name
    larger = cluster
    for hosts in range(1, more_hosts + 1):
        larger = one_more(larger, host)
        if candidate := best(model, larger, work):
            return replace(found, larger=candidate, host=host, hosts=hosts, cluster=larger)
    return found


def _missing(candidate: Candidate) -> int:
    return sum(max(0, -use.margin) for use in candidate.prediction.memory)


def _along_all_hosts(model: ModelSpec, cluster: ClusterSpec, work: Workload, runtime: Runtime) -> list[Candidate]:
    """The pipeline over all hosts, the roomiest first, whose worst host misses least."""
    names = sorted(cluster.by_name, key=lambda name: (-cluster.by_name[name].memory, name))
    names = names[: min(model.layers, _MOST_STAGES)]
    costs = StageCosts(model, cluster, work, runtime, everywhere=False)
    lacks = []
    for name in names:
        (use,) = costs.memory(Cutting((name,)))
        lacks.append(StageTable(use.by_layer, (), use.always - use.room, use.first, use.last))
    cut = cut_layers(lacks, "max") if len(names) > 1 else None
    if cut is None:
        return []
    spans = zip(names, (0, *cut.ends[:-1]), cut.ends, strict=True)
    layout = Layout(tuple(Cutting((name,)).stage(first, last) for name, first, last in spans))
    layout = replace(layout, obstacle=obstacle_of(model, layout))
    try:
        return [Candidate(layout, predict(model, cluster, layout, work, runtime))]
    except PlanError:  # no cables lead from one host to another
        return []
