"""Plans worth a prediction over a few hosts: the best of each kind, exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.memory import largest_context
from ferrule.plan.cost.predictor import predict
from ferrule.plan.plan import Plan, Stage
from ferrule.plan.question import Question
from ferrule.plan.search.exact.space import ExactSearch, Widths
from ferrule.plan.search.stages.classes import interchangeable
from ferrule.plan.search.stages.costs import Measure, StageCosts

NOT_ALL = "some messages go best by way of other hosts: not every set of these was tried"
_GROUPS = 200
"""Sets of hosts are searched one by one where these have no more groups than so many together: a ring of five has
182."""


@dataclass(frozen=True)
class Plans:
    found: list[Plan]
    exact: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """Hosts to search. ``all_used``: only plans over all of them count; ``relays``: they forward for each other."""

    cluster: ClusterSpec
    all_used: bool = False
    relays: bool = True


def few_hosts(question: Question) -> Plans:
    """The best one-stage plans of each width and strategy, and the best pipelines of each number and width of
    stages.

    Where every message goes best by a cable of its own, one search over all hosts suffices: a message costs the same
    in every plan. Else each set of hosts is searched by itself, since only hosts of the plan relay; if there are
    too many of those, all hosts at once, as if all of them relayed and as if none did.
    """
    parts, exact = _parts(question.cluster)
    costs = [StageCosts(question.on(part.cluster), everywhere=part.relays) for part in parts]

    def room(plan: Plan) -> int:
        return _room(question, plan)

    def searched(context: int, *, enough: bool = False) -> list[Plan]:
        """``enough``: one plan with that much room is, and hosts that relay change nothing in that."""
        found: list[Plan] = []
        for part, known in zip(parts, costs, strict=True):
            if enough and any(room(plan) >= context for plan in found):
                break
            found += best_of_each(ExactSearch(known.with_context(context), all_used=part.all_used))
        return found

    def has_room(context: int) -> bool:
        return any(
            ExactSearch(known.with_context(context)).has_room()
            for part, known in zip(parts, costs, strict=True)
            if part.relays
        )

    found = searched(question.work.context)
    if question.objective == "context":
        rooms = [room(plan) for plan in found]
        most = min(question.model.max_context, max(_pooled(question), *rooms))
        longest = _longest(most, max(rooms, default=0), has_room)
        found += searched(longest, enough=not exact) if longest > max(rooms, default=0) else []
    return Plans(found, exact, () if exact else (NOT_ALL,))


def best_of_each(search: ExactSearch) -> list[Plan]:
    """The best one-stage plans of each width, the best pipelines of each width of stages, and the best with stages of
    different widths, if that beats all of these."""
    objective = search.question.objective
    alone = Measure("prompt" if objective == "ttft" else "token")
    count = sum(search.available)
    if objective in ("throughput", "energy"):
        together = Measure("token", search.question.work.concurrency)
        return [plan for _, plan in _best_stages(search, together) + _overlapped(search, count)]
    found = _best_stages(search, alone)
    added = [search.added(alone, range(width, width + 1)) for width in range(1, count // 2 + 1)]
    if objective != "context":
        added += [search.added(alone, range(1, 2), stages) for stages in range(2, count + 1)]
    found += [each for each in added if each]
    if count > 2:
        bound = min((seconds for seconds, _ in found), default=math.inf) if objective != "context" else math.inf
        mixed = search.added(alone, range(1, count), bound=bound)
        found += [mixed] if mixed else []
    return [plan for _, plan in found]


def _best_stages(search: ExactSearch, measure: Measure) -> list[tuple[float, Plan]]:
    """Of each width and strategy, the quickest that fits, or what misses least; and of single hosts each kind."""
    best: dict[tuple[object, ...], tuple[tuple[float, float], Plan]] = {}
    for seconds, missing, plan in search.one_stage(measure):
        width = plan.stages[0].width
        kind = (width, plan.strategy, plan.stages[0].even) if width > 1 else plan.devices
        if kind not in best or (missing, seconds) < best[kind][0]:
            best[kind] = ((missing, seconds), plan)
    return [(seconds if missing <= 0 else math.inf, plan) for (missing, seconds), plan in best.values()]


def _overlapped(search: ExactSearch, count: int) -> list[tuple[float, Plan]]:
    """The best pipelines of stages of each width, and of different ones if that is better."""
    found: list[tuple[float, Plan]] = []
    for width in range(1, count // 2 + 1):
        best = math.inf
        for stages in range(2, count // width + 1):
            # More stages than that are compared by the time that each sequence waits for its next token.
            if one := of_stages(search, stages, range(width, width + 1), best):
                best = one[0]
                found.append(one)
    if count > 2:
        best = min((seconds for seconds, _ in found), default=math.inf)
        for stages in range(2, count):
            if one := of_stages(search, stages, range(1, count), best):
                best = one[0]
                found.append(one)
    return found


def of_stages(search: ExactSearch, stages: int, widths: Widths, bound: float) -> tuple[float, Plan] | None:
    """The best pipeline of so many stages, if a step of it takes less than ``bound``."""
    batches, each = search.question.batches(stages)
    if len(widths) > 1:
        # Smaller batches take no longer: that spares pricing every group for each number of stages.
        least = min(search.question.batches(other)[1] for other in range(2, sum(search.available)))
        if not search.may_overlap(Measure("token", least), batches, stages, widths, bound):
            return None
        widths = range(1, sum(search.available) - stages + 2)
    return search.overlapped(Measure("token", each), batches, stages, widths, bound)


def searched_whole(cluster: ClusterSpec) -> bool:
    """Whether `few_hosts` searches everything."""
    return _parts(cluster)[1]


def _parts(cluster: ClusterSpec) -> tuple[list[_Part], bool]:
    """Parts of the search, and whether they are everything."""
    names = [device.name for device in cluster.devices]
    exchange = Exchange(cluster, names)
    if _connected(cluster, names) and not any(
        exchange.route(a, b).relayed for a, b in itertools.permutations(names, 2)
    ):
        return [_Part(cluster)], True
    classes = interchangeable(cluster)
    sets, groups = [], 0
    for counts in itertools.product(*(range(len(each) + 1) for each in classes)):
        some = sorted(name for each, count in zip(classes, counts, strict=True) for name in each[:count])
        if some and _connected(cluster, some):
            sets.append(_Part(cluster.among(some), all_used=True))
            groups += math.prod(count + 1 for count in counts)
    if groups <= _GROUPS:
        return sets, True
    return [_Part(cluster), _Part(cluster, relays=False)], False


def _connected(cluster: ClusterSpec, names: Iterable[str]) -> bool:
    left = set(names)
    reached = [left.pop()]
    while reached:
        here = reached.pop()
        near = {name for name in left if cluster.pair(here, name)}
        left -= near
        reached += near
    return not left


def _room(question: Question, plan: Plan) -> int:
    try:
        return predict(question, plan).largest_context
    except PlanError:  # its hosts would need others to relay
        return 0


def _pooled(question: Question) -> int:
    """The longest context for which one device would have room that had the memory of all, and no process on it."""
    devices = question.cluster.devices
    one = replace(devices[0], name="all", memory=sum(device.memory for device in devices), runtime_bytes=0)
    plan = Plan((Stage((one.name,), 0, question.model.layers),))
    return largest_context(question.on(ClusterSpec((one,))), plan)


def _longest(most: int, least: int, has_room: Callable[[int], bool]) -> int:
    """The longest context for which there is room, within a hundredth."""
    high = tried = most
    low = least
    while high - low > low // 100:
        if has_room(tried):
            low = tried
        else:
            high = tried - 1
        tried = (low + high + 1) // 2
    return low
