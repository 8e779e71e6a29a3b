"""Whole copies of a model, each on devices of its own, beside plans that split it over all of them. Pure.

A copy exchanges nothing with the others, so that their tokens per second add up; one stream is as fast as its copy.
Considered are equal groups of neighbouring devices, of each size, and those that are too small together as one more: of
six devices of which four hold the model alone, five copies, for example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ferrule.model import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec
from ferrule.plan.cost.predictor import predicted
from ferrule.plan.explain.verdict import WORTH_IT
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Question, Workload
from ferrule.plan.search.best import best_plan, search

AT_ONCE = 16
"""Sequences for which the best number of copies is looked for."""
MOST_DEVICES = 64
"""Of more no copies are planned."""

Group = tuple[str, ...]
"""Names of devices."""


@dataclass(frozen=True)
class Replicated:
    """Copies of a model. ``copies``: each with what is predicted of it for its share of the sequences, on devices of
    the group at the same place of ``groups``. ``slower``: by how much longer a step takes as all compute at once, on
    machines that share cores."""

    copies: tuple[Candidate, ...]
    groups: tuple[Group, ...]
    slower: float = 1.0

    @property
    def throughput(self) -> float:
        """Tokens per second of all streams together."""
        return sum(each.prediction.throughput for each in self.copies) / self.slower

    @property
    def tokens_per_s(self) -> float:
        """Of a single stream, which goes to the fastest copy."""
        return max(each.prediction.tokens_per_s for each in self.copies)

    @property
    def ttft_seconds(self) -> float:
        """Of a prompt, which goes to the copy that is done with it first."""
        return min(each.prediction.ttft_seconds for each in self.copies)


def best_replicas(question: Question, count: int | None = None, *, whole_hosts: bool = False) -> Replicated | None:
    """The copies with the most tokens per second for ``work.concurrency`` sequences: ``count`` of them, or as many as
    are best, from two, but no more than there are sequences. ``whole_hosts``: they share no host. None where they do
    not fit."""
    known = _Plans(question)
    most = count or question.work.concurrency
    found = []
    units = _units(question.cluster, whole_hosts=whole_hosts)
    for groups in dict.fromkeys(division[:most] for division in _divisions(units, count, known)):
        if len(groups) >= 2 and count in (None, len(groups)):
            found.append(_replicated(question, groups, known))
    return max(filter(None, found), key=lambda each: (each.throughput, -len(each.copies)), default=None)


def replicas_question(model: ModelSpec, cluster: ClusterSpec, count: int | None, max_context: int | None) -> Question:
    """What ``count`` copies, or the best number of them, are chosen by."""
    context = min(max_context or Workload().context, model.max_context)
    work = Workload(context, min(512, max(1, context // 2)), concurrency=count or AT_ONCE)
    return Question(model, cluster, work, "throughput", runnable_only=True)


def worthwhile_replicas(
    question: Question, count: int | None = None, *, whole_hosts: bool = False
) -> Replicated | None:
    """As `best_replicas`; where their number is not given, None also if one copy makes about as many tokens."""
    found = best_replicas(question, count, whole_hosts=whole_hosts)
    if found is None or count is not None:
        return found
    alone = search(question).best
    return None if alone and found.throughput < WORTH_IT * alone.prediction.throughput else found


def divide(units: Sequence[Group], count: int) -> tuple[Group, ...]:
    """All ``units`` in ``count`` groups of neighbours, as even as they go; some are empty where there are too few."""
    ends = [part * len(units) // count for part in range(count + 1)]
    return tuple(_joined(units[first:last]) for first, last in pairwise(ends))


def _joined(units: Sequence[Group]) -> Group:
    return tuple(name for unit in units for name in unit)


def _units(cluster: ClusterSpec, *, whole_hosts: bool) -> list[Group]:
    """Devices, or those of each host, which go to one copy: those of one host next to each other, and hosts with much
    memory first, so that equal ones are together."""
    by_host: dict[str, list[DeviceSpec]] = {}
    for device in sorted(cluster.devices, key=lambda each: (each.host_name, each.name)):
        by_host.setdefault(device.host_name, []).append(device)
    hosts = sorted(by_host.values(), key=lambda devices: -sum(device.memory for device in devices))
    if whole_hosts:
        return [tuple(device.name for device in devices) for devices in hosts]
    return [(device.name,) for devices in hosts for device in devices]


def _divisions(units: Sequence[Group], count: int | None, known: _Plans) -> Iterator[tuple[Group, ...]]:
    """Groups of which each holds the model, for one sequence."""
    if sum(map(len, units)) > MOST_DEVICES:
        return
    if count is not None and all(known.of(group, 1) for group in divide(units, count)):
        yield divide(units, count)
    for size in range(1, len(units) // (count or 2) + 1):
        groups = [units[at : at + size] for at in range(0, len(units), size)]
        fitting = [group for group in groups if known.of(_joined(group), 1) is not None]
        rest = [unit for group in groups if group not in fitting for unit in group]
        if len(rest) > size and known.of(_joined(rest), 1) is not None:
            fitting.append(rest)
        yield tuple(map(_joined, fitting))


class _Plans:
    """The best plan on each group of devices alone, searched once for groups that are alike."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._known: dict[str, Plan | None] = {}

    def of(self, group: Group, sequences: int) -> Plan | None:
        """For so many sequences. None where it does not fit."""
        if not group:
            return None
        cluster = self._question.cluster.among(group)
        numbers = {name: str(number) for number, name in enumerate(group)}
        devices = [replace(device, name="-", host="") for device in cluster.devices]
        pairs = sorted((*(numbers[end] for end in pair.between), repr(pair.rails)) for pair in cluster.pairs)
        alike = repr((sequences, devices, pairs))
        if alike not in self._known:
            best = best_plan(self._question.on(cluster).with_work(concurrency=sequences))
            self._known[alike] = None if best is None else best.plan.on([numbers[each] for each in best.plan.devices])
        plan = self._known[alike]
        return None if plan is None else plan.on([group[int(number)] for number in plan.devices])


def _replicated(question: Question, groups: Sequence[Group], known: _Plans) -> Replicated | None:
    """Copies on ``groups``, sequences shared out by their speed or, where there is no room for that, evenly."""
    sequences = question.work.concurrency
    each = max(1, -(-sequences // len(groups)))
    plans = [plan for group in groups if (plan := known.of(group, each)) is not None]
    if len(plans) < len(groups):
        return None
    even = [predicted(question.with_work(concurrency=each), plan) for plan in plans]
    shares = _shares(sequences, [candidate.prediction.throughput for candidate in even])
    copies = [
        predicted(question.with_work(concurrency=max(1, share)), plan)
        for plan, share in zip(plans, shares, strict=True)
    ]
    if not all(candidate.prediction.fits for candidate in copies):
        copies = even
    ranks = [plan.world_size for plan in plans]
    turns = question.cluster.turns
    return Replicated(tuple(copies), tuple(groups), max(1.0, turns(sum(ranks)) / turns(max(ranks))))


def _shares(sequences: int, speeds: Sequence[float]) -> list[int]:
    """``sequences`` in proportion to ``speeds``, in whole numbers that add up."""
    total, so_far, shares = sum(speeds), 0.0, list[int]()
    for speed in speeds:
        so_far += speed
        shares.append(round(sequences * so_far / total) - sum(shares))
    return shares
