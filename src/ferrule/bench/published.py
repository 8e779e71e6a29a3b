"""Predict what others measured, from published figures of their machines, and say by how much the planner is wrong.

One number per kind of machine is fitted to the rows that use it: the seconds that an operation costs. All else is what
makers and others published (``ferrule lab profiles``) and what is known of the programs (plan/runtime.py).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from itertools import combinations

import msgspec

from ferrule.hardware import Profiles, shipped
from ferrule.model import ModelSpec, Share, read_model
from ferrule.plan import RUNTIMES, ClusterSpec, PairSpec, Plan, Prediction, Question, Stage, Workload
from ferrule.plan.cluster.profile import device_of, is_apple, rail_of
from ferrule.plan.cost import predict

PROMPT = 256
"""Tokens before those that were timed, where the source does not say."""
LEAST, MOST = 1e-7, 1e-3
"""Seconds per operation between which the fit looks."""
_GOLDEN = (math.sqrt(5) - 1) / 2


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens per second of all streams together."""

    hosts: int
    tokens_per_s: float
    split: str = "single"
    concurrency: int = 1


@dataclass(frozen=True)
class Series:
    """Measurements of one model on machines of one kind, as in published.toml."""

    name: str
    model: str
    weights: str
    machine: str
    cable: str
    runtime: str
    source: str
    url: str
    rows: tuple[Measurement, ...]

    @cached_property
    def spec(self) -> ModelSpec:
        return read_model(self.model, weights=self.weights)


@dataclass(frozen=True)
class PublishedRow:
    """``predicted`` beside ``measured``, in tokens per second of all streams together."""

    series: Series
    measurement: Measurement
    predicted: float

    @property
    def measured(self) -> float:
        return self.measurement.tokens_per_s

    @property
    def error(self) -> float:
        """In parts of what was measured."""
        return self.predicted / self.measured - 1

    @property
    def what(self) -> str:
        streams = "" if self.measurement.concurrency == 1 else f", {self.measurement.concurrency} streams"
        return f"{self.measurement.hosts} {self.measurement.split}{streams}"


@dataclass(frozen=True)
class PublishedBench:
    """``launch_seconds``: what was fitted, by kind of machine. ``disagreements``: pairs of rows of one model on
    machines of one kind whose order is predicted wrongly, in words."""

    rows: tuple[PublishedRow, ...]
    launch_seconds: dict[str, float]
    disagreements: tuple[str, ...]

    @property
    def mean_error(self) -> float:
        return sum(abs(row.error) for row in self.rows) / len(self.rows)


def read_series() -> tuple[Series, ...]:
    tables = tomllib.loads((files("ferrule.bench") / "published.toml").read_text(encoding="utf-8"))
    return msgspec.convert(tables["series"], tuple[Series, ...])


def bench_published() -> PublishedBench:
    """Fit and predict all of them."""
    profiles, every = shipped(), read_series()
    machines = sorted({series.machine for series in every})
    fitted = {
        machine: _fit([one for one in every if one.machine == machine], profiles, machine) for machine in machines
    }
    rows = tuple(row for series in every for row in _rows(series, profiles, fitted[series.machine]))
    return PublishedBench(rows, fitted, tuple(_disagreements(rows)))


def _fit(series: Sequence[Series], profiles: Profiles, machine: str) -> float:
    """The seconds per operation with the least sum of squared errors, by golden section over their logarithm."""

    def loss(log: float) -> float:
        rows = [row for one in series for row in _rows(one, profiles, math.exp(log))]
        return sum(math.log(row.predicted / row.measured) ** 2 for row in rows)

    low, high = math.log(LEAST), math.log(MOST)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 0.01:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def _rows(series: Series, profiles: Profiles, launch_seconds: float) -> list[PublishedRow]:
    return [
        PublishedRow(series, row, _predict(series, row, profiles, launch_seconds).throughput) for row in series.rows
    ]


def _predict(series: Series, row: Measurement, profiles: Profiles, launch_seconds: float) -> Prediction:
    machine = profiles.machines[series.machine]
    names = [f"host-{number + 1}" for number in range(row.hosts)]
    devices = tuple(replace(device_of(machine, name), launch_seconds=launch_seconds) for name in names)
    rail = rail_of(profiles.cables[series.cable], apple=is_apple(machine))
    pairs = tuple(PairSpec(ends, (rail,)) for ends in combinations(names, 2))
    work = Workload(prompt=PROMPT, concurrency=row.concurrency)
    plan = plan_of(series.spec.layers, names, row.split)
    return predict(Question(series.spec, ClusterSpec(devices, pairs), work, runtime=RUNTIMES[series.runtime]), plan)


def plan_of(layers: int, names: Sequence[str], split: str) -> Plan:
    """All hosts alike: as many layers for each, or an equal part of every one, or of the experts alone."""
    n = len(names)
    if split in ("single", "pipeline"):
        bounds = [layers * place // n for place in range(n + 1)]
        return Plan(
            tuple(Stage((name,), first, last) for name, first, last in zip(names, bounds[:-1], bounds[1:], strict=True))
        )
    share = Share(experts=1 / n) if split == "expert" else Share.even(n)
    return Plan((Stage(tuple(names), 0, layers, (share,) * n, experts=split == "expert"),))


def _disagreements(rows: Sequence[PublishedRow]) -> list[str]:
    """One host is left out of comparisons between programs: there the planner knows of no difference."""
    wrong = []
    for a, b in combinations(rows, 2):
        same = (a.series.model, a.series.weights, a.series.machine, a.measurement.concurrency)
        if same != (b.series.model, b.series.weights, b.series.machine, b.measurement.concurrency):
            continue
        if a.series is not b.series and 1 in (a.measurement.hosts, b.measurement.hosts):
            continue
        if (a.measured - b.measured) * (a.predicted - b.predicted) <= 0:
            wrong.append(f"{a.series.name}: {a.what} against {b.series.name}: {b.what}")
    return wrong
