"""Cross-validation of the planner against published figures: each row is predicted by a fit to all but its family's
rows, and by one to all but its machine's."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ferrule.bench.published.data import Measurement, Series, read_series
from ferrule.bench.published.fit import Linear, Name, fit, linear, names_of, prediction_of, seconds_of, terms_of
from ferrule.hardware import Profiles, shipped
from ferrule.plan import Prediction
from ferrule.plan.cost.interval import Case
from ferrule.plan.prediction import Between

COVERED = 0.85
"""Part of the left-out errors that a stated interval holds, so that of rows yet unseen 0.8 are within."""
SAME = 1.1
"""Measurements that differ by less have no order: one model on one machine differs by more from week to week."""


@dataclass(frozen=True)
class PublishedRow:
    """Tokens per second of all streams together. ``predicted``: as the planner does; ``predicted_by_fit``: as
    a fit to all rows that count adds it up. ``without_family`` and
    ``without_machine``: by fits that have not seen any row of the same. ``low`` and ``high``: within which the planner
    would expect it, by the errors of other families."""

    series: Series
    measurement: Measurement
    predicted: float
    predicted_by_fit: float
    without_family: float
    without_machine: float
    low: float
    high: float

    @property
    def measured(self) -> float:
        return self.measurement.tokens_per_s

    @property
    def error(self) -> float:
        """Of ``without_family``, in parts of what was measured."""
        return self.without_family / self.measured - 1

    @property
    def counted(self) -> bool:
        return not self.measurement.doubtful

    @property
    def held(self) -> bool:
        """Within the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class CheckedRow:
    """As the planner predicts it, and within what."""

    series: Series
    measurement: Measurement
    predicted: float
    between: Between

    @property
    def error(self) -> float:
        """In parts of what was measured."""
        return self.predicted / self.measurement.tokens_per_s - 1

    @property
    def held(self) -> bool:
        return self.between.low <= self.measurement.tokens_per_s <= self.between.high


@dataclass(frozen=True)
class PublishedBench:
    """``fitted``: the numbers, by all rows that count. ``spreads``: of log errors without the family, by case.
    ``disagreements``: pairs of rows of one model on machines of one kind whose order is predicted wrongly without
    the family, in words. ``checked``: figures that were compared when all had been chosen."""

    rows: tuple[PublishedRow, ...]
    fitted: Mapping[Name, float]
    spreads: Mapping[Case, float]
    disagreements: tuple[str, ...]
    checked: tuple[CheckedRow, ...]

    @property
    def checked_error(self) -> float:
        return sum(abs(row.error) for row in self.checked) / len(self.checked)

    @property
    def checked_covered(self) -> float:
        return sum(row.held for row in self.checked) / len(self.checked)

    @property
    def counted(self) -> list[PublishedRow]:
        return [row for row in self.rows if row.counted]

    @property
    def fitted_error(self) -> float:
        return self._mean(lambda row: row.predicted)

    @property
    def family_error(self) -> float:
        """Mean absolute error without the family."""
        return self._mean(lambda row: row.without_family)

    @property
    def machine_error(self) -> float:
        return self._mean(lambda row: row.without_machine)

    @property
    def worst(self) -> PublishedRow:
        return max(self.counted, key=lambda row: abs(row.error))

    @property
    def covered(self) -> float:
        """Part of the rows that are within their interval."""
        return sum(row.held for row in self.counted) / len(self.counted)

    def _mean(self, predicted: Callable[[PublishedRow], float]) -> float:
        return sum(abs(predicted(row) / row.measured - 1) for row in self.counted) / len(self.counted)


def bench_published() -> PublishedBench:
    """Fit, predict and cross-validate all of them."""
    profiles = shipped()
    every = [linear(one, row, profiles) for one in read_series() for row in one.rows]
    counted = [row for row in every if not row.row.doubtful]
    names = names_of(every)
    families = _left_out(every, counted, names, lambda row: row.series.family)
    machines = _left_out(every, counted, names, lambda row: row.series.machine)
    fitted = fit(counted, names)
    errors = [
        (row, math.log(row.measured / seconds))
        for row, seconds in zip(every, families, strict=True)
        if not row.row.doubtful
    ]
    rows = []
    for row, family, machine in zip(every, families, machines, strict=True):
        others = [(other, error) for other, error in errors if other.series.family != row.series.family]
        rate = row.row.tokens / family
        between = Between.about(rate, _spread(others, case_of(row)))
        rows.append(
            PublishedRow(
                row.series,
                row.row,
                _rate(prediction_of(row.series, row.row, profiles), row.row),
                row.row.tokens / seconds_of(row, fitted),
                rate,
                row.row.tokens / machine,
                between.low,
                between.high,
            )
        )
    spreads = {case: _spread(errors, case) for case in sorted({case_of(row) for row in counted})}
    return PublishedBench(tuple(rows), fitted, spreads, tuple(_disagreements(rows)), _checked(profiles))


def _spread(errors: Iterable[tuple[Linear, float]], case: Case) -> float:
    return quantile([error for row, error in errors if case_of(row) == case])


def _checked(profiles: Profiles) -> tuple[CheckedRow, ...]:
    found = []
    for series in read_series("check.toml"):
        for row in series.rows:
            prediction = prediction_of(series, row, profiles)
            rate, interval = _rate(prediction, row), prediction.interval
            spread = interval.prompt if row.prefill else interval.token if row.concurrency == 1 else interval.step
            found.append(CheckedRow(series, row, rate, Between.about(rate, spread)))
    return tuple(found)


def _rate(prediction: Prediction, row: Measurement) -> float:
    """Tokens per second."""
    return row.tokens / sum(term.seconds for term in terms_of(prediction, row))


def case_of(row: Linear) -> Case:
    if row.row.prefill:
        return "prompt"
    if row.row.concurrency > 1:
        return "streams"
    return "split" if row.row.hosts > 1 else "one"


def quantile(errors: Sequence[float]) -> float:
    """Such that `COVERED` of them are no larger either way."""
    ordered = sorted(abs(error) for error in errors)
    return ordered[min(len(ordered) - 1, math.ceil(COVERED * len(ordered)) - 1)]


def _left_out(
    every: Sequence[Linear], counted: Sequence[Linear], names: Sequence[Name], of: Callable[[Linear], Hashable]
) -> list[float]:
    """Seconds of each row, by a fit to the rows that count and are not of the same group."""
    fits = {group: fit([row for row in counted if of(row) != group], names) for group in {of(row) for row in every}}
    return [seconds_of(row, fits[of(row)]) for row in every]


def _disagreements(rows: Sequence[PublishedRow]) -> list[str]:
    """One host is left out of comparisons between programs: what splits them is not what is compared."""
    wrong = []
    for a, b in combinations([row for row in rows if row.counted], 2):
        one, other = a.measurement, b.measurement
        same = (a.series.model, a.series.weights, a.series.machine, one.concurrency, one.depth, one.phase)
        if same != (b.series.model, b.series.weights, b.series.machine, other.concurrency, other.depth, other.phase):
            continue
        if a.series is not b.series and 1 in (one.hosts, other.hosts):
            continue
        if max(a.measured, b.measured) < SAME * min(a.measured, b.measured):
            continue
        if (a.measured - b.measured) * (a.without_family - b.without_family) <= 0:
            wrong.append(f"{a.series.name}: {one.what} against {b.series.name}: {other.what}")
    return wrong
