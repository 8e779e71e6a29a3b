"""Whole copies of a model, each on devices of its own, beside plans that split it over all of them. Pure.

A copy exchanges nothing with the others, so that their tokens per second add up; one stream is as fast as its copy.
Considered are equal groups of neighbouring devices, of each size, and those that are too small together as one more: of
six devices of which four hold the model alone, five copies, for example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predicted
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Question
from ferrule.plan.search.best import best_plan

MOST_DEVICES = 64
"""Of more no copies are planned."""

Group = tuple[str, ...]
"""Names of devices."""


@dataclass(frozen=True)
class Replicated:
    """Copies of a model. ``copies``: each with what is predicted of it for its share of the sequences. ``slower``: by
    how much longer a step takes as all compute at once, on machines that share cores."""

    copies: tuple[Candidate, ...]
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


def best_replicas(question: Question, count: int | None = None) -> Replicated | None:
    """The copies with the most tokens per second for ``work.concurrency`` sequences: ``count`` of them, or as many as
    are best, from two, but no more than there are sequences. None where they do not fit."""
    known = _Plans(question)
    most = count or question.work.concurrency
    found = []
    for groups in dict.fromkeys(division[:most] for division in _divisions(question.cluster, count, known)):
        if len(groups) >= 2 and count in (None, len(groups)):
            found.append(_replicated(question, groups, known))
    return max(filter(None, found), key=lambda each: (each.throughput, -len(each.copies)), default=None)


def divide(cluster: ClusterSpec, count: int) -> tuple[Group, ...]:
    """All devices in ``count`` groups of neighbours, as even as they go; some are empty where there are too few."""
    names = _neighbours(cluster)
    return tuple(tuple(names[part * len(names) // count : (part + 1) * len(names) // count]) for part in range(count))


def _neighbours(cluster: ClusterSpec) -> list[str]:
    """Devices of one host one after the other, and hosts with much memory first, so that equal ones are together."""
    room: dict[str, int] = {}
    for device in cluster.devices:
        room[device.host_name] = room.get(device.host_name, 0) + device.memory
    ordered = sorted(cluster.devices, key=lambda each: (-room[each.host_name], each.host_name, each.name))
    return [device.name for device in ordered]


def _divisions(cluster: ClusterSpec, count: int | None, known: _Plans) -> Iterator[tuple[Group, ...]]:
    """Groups that hold the model, for as many sequences as there are with each of them one."""
    names = _neighbours(cluster)
    if len(names) > MOST_DEVICES:
        return
    if count is not None and all(known.of(group, 1) for group in divide(cluster, count)):
        yield divide(cluster, count)
    for size in range(1, len(names) // (count or 2) + 1):
        groups = [tuple(names[at : at + size]) for at in range(0, len(names), size)]
        fitting = [group for group in groups if known.of(group, 1) is not None]
        rest = tuple(name for name in names if not any(name in group for group in fitting))
        if len(rest) > size and known.of(rest, 1) is not None:
            fitting.append(rest)
        yield tuple(fitting)


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
    return Replicated(tuple(copies), max(1.0, turns(sum(ranks)) / turns(max(ranks))))


def _shares(sequences: int, speeds: Sequence[float]) -> list[int]:
    """``sequences`` in proportion to ``speeds``, in whole numbers that add up."""
    total, so_far, shares = sum(speeds), 0.0, list[int]()
    for speed in speeds:
        so_far += speed
        shares.append(round(sequences * so_far / total) - sum(shares))
    return shares
