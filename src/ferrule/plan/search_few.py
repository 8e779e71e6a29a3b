"""Layouts worth a prediction over a few hosts: the best of each kind, exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ferrule.plan.cluster import ClusterSpec
from ferrule.plan.cost import predict
from ferrule.plan.exchange import Exchange
from ferrule.plan.layout import Layout, Objective, Workload
from ferrule.plan.model import ModelSpec
from ferrule.plan.runtime import Runtime
from ferrule.plan.search_classes import interchangeable
from ferrule.plan.search_costs import Measure, StageCosts
from ferrule.plan.search_exact import ExactSearch

_NARROWINGS = 12
_SETS = 64
"""Up to so many connected sets of hosts are searched one by one: those of a ring of eight are 57."""


@dataclass(frozen=True)
class Layouts:
    found: list[Layout]
    exact: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """Hosts to search. ``all_used``: only layouts over all of them count; ``relays``: they forward for each other."""

    cluster: ClusterSpec
    all_used: bool = False
    relays: bool = True


def few_hosts(
    model: ModelSpec, cluster: ClusterSpec, work: Workload, objective: Objective, runtime: Runtime, *, runnable: bool
) -> Layouts:
    """The best one-stage layouts of each width and strategy, and the best pipelines of each number and width of
    stages.

    Where every message goes best by a cable of its own, one search over all hosts suffices: a message costs the same
    in every layout. Else each set of hosts is searched by itself, since only hosts of the layout relay; if there are
    too many of those, all hosts at once, as if all of them relayed and as if none did.
    """
    parts, exact = _parts(cluster)

    costs = [StageCosts(model, part.cluster, work, runtime, everywhere=part.relays) for part in parts]

    def searched(context: int) -> list[Layout]:
        found = []
        for part, known in zip(parts, costs, strict=True):
            search = ExactSearch(known.with_context(context), runnable=runnable, all_used=part.all_used)
            found += best_of_each(search, work, objective)
        return found

    found = searched(work.context)
    if objective == "context":
        found += _longest(model, cluster, work, runtime, found, searched)
    note = () if exact else ("some messages go best by way of other hosts: not every set of these was tried",)
    return Layouts(found, exact, note)


def best_of_each(search: ExactSearch, work: Workload, objective: Objective) -> list[Layout]:
    """For energy: the quickest, of which the most frugal is not always one."""
    alone = Measure("prompt" if objective == "ttft" else "token")
    if objective == "context":
        widths = range(1, sum(search.available) // 2 + 1)
        return _best_stages(search, alone) + [layout for width in widths if (layout := search.added(alone, width))]
    together = Measure("token", work.concurrency)
    count = sum(search.available)
    if objective in ("throughput", "energy"):
        found = _best_stages(search, together) + [
            layout for width in range(1, count // 2 + 1) for layout in _overlapped(search, work, count, width)
        ]
        return found + (_all_added(search, alone, count) if objective == "energy" else [])
    return _best_stages(search, alone) + _all_added(search, alone, count)


def _best_stages(search: ExactSearch, measure: Measure) -> list[Layout]:
    """Of each width and strategy, the quickest that fits, or what misses least; and of single hosts each kind."""
    best: dict[tuple[object, ...], tuple[tuple[float, float], Layout]] = {}
    for seconds, missing, layout in search.one_stage(measure):
        width = layout.stages[0].width
        kind = (width, layout.strategy, layout.stages[0].even) if width > 1 else layout.devices
        if kind not in best or (missing, seconds) < best[kind][0]:
            best[kind] = ((missing, seconds), layout)
    return [layout for _, layout in best.values()]


def _all_added(search: ExactSearch, measure: Measure, count: int) -> list[Layout]:
    found = [search.added(measure, width) for width in range(1, count // 2 + 1)]
    found += [search.added(measure, 1, stages) for stages in range(2, count + 1)]
    return [layout for layout in found if layout is not None]


def _overlapped(search: ExactSearch, work: Workload, count: int, width: int) -> Iterator[Layout]:
    """The best pipeline of stages of that width."""
    best = math.inf
    for stages in range(2, count // width + 1):
        batches = min(stages, work.concurrency) if search.costs.runtime.batches else 1
        measure = Measure("token", -(-work.concurrency // batches))
        # More stages than that are compared by the time that each sequence waits for its next token.
        if found := search.overlapped(measure, batches, stages, width, best):
            best = found[0]
            yield found[1]


def _parts(cluster: ClusterSpec) -> tuple[list[_Part], bool]:
    """What is to be searched, and whether that is everything."""
    names = [device.name for device in cluster.devices]
    exchange = Exchange(cluster, names)
    if _connected(cluster, names) and not any(
        exchange.route(a, b).relayed for a, b in itertools.permutations(names, 2)
    ):
        return [_Part(cluster)], True
    classes = interchangeable(cluster)
    sets = []
    for counts in itertools.product(*(range(len(each) + 1) for each in classes)):
        some = sorted(name for each, count in zip(classes, counts, strict=True) for name in each[:count])
        if some and _connected(cluster, some):
            sets.append(_Part(cluster.among(some), all_used=True))
    if len(sets) <= _SETS:
        return sets, True
    return [_Part(cluster), _Part(cluster, relays=False)], False


def _connected(cluster: ClusterSpec, names: Iterable[str]) -> bool:
    left = set(names)
    reached = [left.pop()]
    while reached:
        here = reached.pop()
        near = {name for name in left if cluster.link(here, name)}
        left -= near
        reached += near
    return not left


def _longest(
    model: ModelSpec,
    cluster: ClusterSpec,
    work: Workload,
    runtime: Runtime,
    known: Iterable[Layout],
    searched: Callable[[int], list[Layout]],
) -> list[Layout]:
    """Layouts with ever more room for context, up to the longest for which there is one at all, within a hundredth."""

    def room(layout: Layout) -> int:
        return predict(model, cluster, layout, work, runtime).largest_context

    found: list[Layout] = []
    longest = max(map(room, known), default=0)
    high = tried = model.max_context
    for _ in range(_NARROWINGS):
        if high - longest <= longest // 100:
            break
        fitting = {layout: size for layout in searched(tried) if (size := room(layout)) >= tried}
        found += fitting
        longest = max([longest, *fitting.values()])
        high = high if fitting else tried - 1
        tried = (longest + high + 1) // 2
    return found
