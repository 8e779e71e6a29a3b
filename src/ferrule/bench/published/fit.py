"""Fit of what the planner knows of engines' kernels to published measurements: least squares of log errors and priors.

A prediction is a sum of terms, each of them proportional to one of the fitted numbers or its inverse, so that one
prediction at a reference gives the terms at any other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ferrule.bench.published.data import Measurement, Series, host_names, plan_of, question_of
from ferrule.hardware import Profiles
from ferrule.plan import RUNTIMES, Kernels, Prediction, Runtime, Term
from ferrule.plan.cost import predict
from ferrule.plan.runtime import WORDS

STEPS = 30
CLOSE = 1e-6
NOISE = 0.12
"""Standard deviation of the log of what others measured, as they would at another time with another version."""

Name = tuple[str, str, str]
"""Of a fitted number: the runtime, the maker of devices ("" for a number of the runtime itself), the field."""


@dataclass(frozen=True)
class Prior:
    """``value``: what is taken where nothing was measured; ``spread``: standard deviation of its log."""

    value: float
    spread: float


KERNELS = {
    # Of the bandwidth that reading a large array gets.
    "reading": Prior(0.95, 0.12),
    "attending": Prior(0.8, 0.15),
    # A kernel launch takes 3 to 10 us on most GPUs; captured graphs and fused kernels make it less.
    "launch_seconds": Prior(4e-6, 0.5),
    "expert_seconds": Prior(3e-6, 0.7),
    "arithmetic": Prior(0.5, 0.3),
}
STEPS_OF: dict[str, Prior] = {
    "mlx": Prior(5e-4, 0.6),
    "vllm": Prior(1e-3, 0.6),
    "llama.cpp-rpc": Prior(3e-4, 0.6),
    # Of 2024: graph, sampling and the next message are Python's, token by token.
    "exo-grpc": Prior(5e-3, 0.5),
}
AMD_ARITHMETIC = Prior(0.3, 0.3)
"""The peak that is stated needs two operations to be issued at once."""
SEQUENCE = Prior(2e-4, 0.8)
COLLECTIVES: dict[str, Prior] = {
    # JACCL: 25 to 31 us from program to program where the wire takes 5.
    "mlx": Prior(25e-6, 0.5),
    "vllm": Prior(40e-6, 0.6),
    "exo-grpc": Prior(2e-3, 0.4),
}
MESSAGES: dict[str, Prior] = {
    "llama.cpp-rpc": Prior(1e-3, 0.7),
    "exo-grpc": Prior(1e-3, 0.4),
    "mlx": Prior(3e-4, 0.7),
}


@dataclass(frozen=True)
class Linear:
    """A row's seconds: ``fixed``, and ``terms`` by number of which they are multiples, or of whose inverse (`over`)."""

    series: Series
    row: Measurement
    fixed: float
    terms: Mapping[tuple[Name, ...], float]

    @property
    def measured(self) -> float:
        """Seconds."""
        return self.row.tokens / self.row.tokens_per_s


def over(name: Name) -> bool:
    """Whether seconds fall as the number rises: it is a rate."""
    return name[2] in ("reading", "attending", "arithmetic")


def linear(series: Series, row: Measurement, profiles: Profiles) -> Linear:
    """The row at a reference, by what takes its time."""
    runtime, maker = RUNTIMES[series.runtime], profiles.machines[series.machine].maker
    base = _reference(runtime, 0.0)
    without, with_calls = (_terms(series, row, profiles, each) for each in (base, _reference(runtime, 1e-6)))
    of: dict[str, Name] = {field: (runtime.name, maker, field) for field in KERNELS}
    calls = {kind: (with_calls[kind] - without[kind]) / 1e-6 for kind in ("collective", "hop", "launch")}
    passes = -(-row.prompt // (row.batch or runtime.batch_tokens)) if row.prefill else 1
    sequences = (passes if row.prefill else row.concurrency) * series.spec.vocab_size / WORDS
    terms = {
        (of["reading"],): without["weights"],
        (of["reading"], of["attending"]): without["cache"],
        (("", maker, "arithmetic"),): without["compute"],
        (of["launch_seconds"],): without["launch"],
        (of["expert_seconds"],): calls["launch"],
        ((runtime.name, "", "collective_seconds"),): calls["collective"],
        ((runtime.name, "", "message_seconds"),): calls["hop"],
        ((runtime.name, "", "step_seconds"),): float(passes),
        (("", "", "sequence_seconds"),): sequences,
    }
    fixed = without["collective"] + without["hop"] + without["disk"]
    return Linear(series, row, fixed, {names: value for names, value in terms.items() if value})


def _reference(runtime: Runtime, calls: float) -> Runtime:
    """All rates 1 and launches a second; ``calls``: seconds of every collective, message and expert."""
    return replace(
        runtime,
        kernels={
            maker: Kernels(1.0, 1.0, 1.0, calls, 1.0, each.expert_bits) for maker, each in runtime.kernels.items()
        },
        step_seconds=0.0,
        sequence_seconds=0.0,
        collective_seconds=calls,
        message_seconds=calls,
    )


def _terms(series: Series, row: Measurement, profiles: Profiles, runtime: Runtime) -> dict[str, float]:
    seconds = dict.fromkeys(("weights", "cache", "compute", "launch", "collective", "hop", "disk"), 0.0)
    for term in terms_of(prediction_of(series, row, profiles, runtime), row):
        seconds[term.kind] += term.seconds
    return seconds


def prediction_of(series: Series, row: Measurement, profiles: Profiles, runtime: Runtime | None = None) -> Prediction:
    """``runtime``: as in `question_of`."""
    plan = plan_of(series.spec.layers, host_names(row), row.split)
    return predict(question_of(series, row, profiles, runtime), plan)


def terms_of(prediction: Prediction, row: Measurement) -> tuple[Term, ...]:
    """Of the time that the row is of."""
    if row.prefill:
        return prediction.prompt_terms
    return prediction.terms if row.concurrency == 1 else prediction.step_terms


def prior_of(name: Name) -> Prior:
    runtime, maker, field = name
    if field == "arithmetic" and maker == "amd":
        return AMD_ARITHMETIC
    if field in KERNELS:
        return KERNELS[field]
    if field == "sequence_seconds":
        return SEQUENCE
    return {"step_seconds": STEPS_OF, "collective_seconds": COLLECTIVES, "message_seconds": MESSAGES}[field][runtime]


def fit(rows: Sequence[Linear], names: Iterable[Name]) -> dict[Name, float]:
    """By Gauss and Newton over the logarithms of the numbers."""
    every = list(names)
    priors = [prior_of(name) for name in every]
    at = centre = np.array([math.log(prior.value) for prior in priors])
    weight = np.diag([1 / prior.spread**2 for prior in priors])
    slopes = _Slopes(rows, every)
    for _ in range(STEPS):
        jacobian, residual = slopes.at(at)
        step = np.linalg.solve(
            jacobian.T @ jacobian / NOISE**2 + weight, jacobian.T @ residual / NOISE**2 + weight @ (centre - at)
        )
        at = at + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < CLOSE:
            break
    return dict(zip(every, np.exp(at).tolist(), strict=True))


class _Slopes:
    """Of the log of rows' predicted seconds by the log of each number."""

    def __init__(self, rows: Sequence[Linear], names: Sequence[Name]) -> None:
        place = {name: number for number, name in enumerate(names)}
        terms = [(names, seconds) for row in rows for names, seconds in row.terms.items()]
        self._signs = np.zeros((len(terms), len(names)))
        for number, (those, _) in enumerate(terms):
            for name in those:
                self._signs[number, place[name]] = -1.0 if over(name) else 1.0
        self._seconds = np.array([seconds for _, seconds in terms])
        counts = np.array([len(row.terms) for row in rows], dtype=int)
        self._first, self._row = np.cumsum(counts) - counts, np.repeat(np.arange(len(rows)), counts)
        self._fixed = np.array([row.fixed for row in rows])
        self._measured = np.log([row.measured for row in rows])

    def at(self, logs: Any) -> tuple[Any, Any]:
        """The slopes there, and by how much the log of what was measured is more than predicted."""
        parts = self._seconds * np.exp(self._signs @ logs)
        total = self._fixed + np.add.reduceat(parts, self._first)
        shares = parts / total[self._row]
        return np.add.reduceat(shares[:, None] * self._signs, self._first, axis=0), self._measured - np.log(total)


def seconds_of(row: Linear, values: Mapping[Name, float]) -> float:
    found = row.fixed
    for names, seconds in row.terms.items():
        for name in names:
            seconds = seconds / values[name] if over(name) else seconds * values[name]
        found += seconds
    return found


def names_of(rows: Iterable[Linear]) -> list[Name]:
    return sorted({name for row in rows for names in row.terms for name in names})
