"""Published measurements of others' machines, and the planner's question behind each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any, Literal

import msgspec

from ferrule.hardware import Profiles
from ferrule.model import ModelSpec, Share, read_model, spec_of_config
from ferrule.plan import RUNTIMES, ClusterSpec, PairSpec, Plan, Question, Runtime, Stage, Workload
from ferrule.plan.cluster.profile import device_of, is_apple, rail_of

DEPTH = 256
"""Tokens before those that were timed, where the source does not say."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens per second of all streams together, as in rows.toml."""

    hosts: int
    tokens_per_s: float
    split: Literal["single", "tensor", "pipeline", "expert", "tensor and expert"] = "single"
    concurrency: int = 1
    depth: int = DEPTH
    phase: Literal["decode", "prefill"] = "decode"
    prompt: int = 512
    batch: int | None = None
    doubtful: str = ""

    @property
    def what(self) -> str:
        streams = "" if self.concurrency == 1 else f", {self.concurrency} streams"
        deep = "" if self.depth == DEPTH else f", after {self.depth}"
        return f"{self.hosts} {self.split}{streams}" + (f", prompt {self.prompt}" if self.prefill else deep)

    @property
    def prefill(self) -> bool:
        return self.phase == "prefill"

    @property
    def tokens(self) -> int:
        """That are computed in the time it is of."""
        return self.prompt if self.prefill else self.concurrency


@dataclass(frozen=True)
class Series:
    """Measurements of one model on machines of one kind, as in rows.toml."""

    name: str
    family: str
    model: str
    machine: str
    cable: str
    runtime: str
    source: str
    url: str
    rows: tuple[Measurement, ...]
    weights: str | None = None
    cables: int = 1

    @property
    def spec(self) -> ModelSpec:
        return _spec(self.model, self.weights)


@cache
def _spec(model: str, weights: str | None) -> ModelSpec:
    config = models().get(model)
    if config is None:
        return read_model(model, weights=weights)
    return spec_of_config(model, config["config"], weights=weights)


def read_series(file: Literal["rows.toml", "check.toml"] = "rows.toml") -> tuple[Series, ...]:
    """Those that are fitted, or those that were compared when all had been chosen."""
    return msgspec.convert(_toml(file)["series"], tuple[Series, ...])


@cache
def models() -> Mapping[str, Any]:
    """By name: ``config``, ``source`` and ``parameters`` of models of rows that are none of `known_models`."""
    return _toml("models.toml")


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((files("ferrule.bench.published") / name).read_text(encoding="utf-8"))


def question_of(series: Series, row: Measurement, profiles: Profiles, runtime: Runtime | None = None) -> Question:
    """``runtime``: instead of the one that the series names."""
    machine = profiles.machines[series.machine]
    names = host_names(row)
    devices = tuple(device_of(machine, name) for name in names)
    rails = (rail_of(profiles.cables[series.cable], apple=is_apple(machine)),) * series.cables
    pairs = tuple(PairSpec(ends, rails) for ends in combinations(names, 2))
    runtime = runtime or RUNTIMES[series.runtime]
    if row.batch is not None:
        runtime = replace(runtime, batch_tokens=row.batch)
    work = Workload(prompt=row.prompt, depth=row.depth, concurrency=row.concurrency)
    return Question(series.spec, ClusterSpec(devices, pairs), work, runtime=runtime)


def host_names(row: Measurement) -> list[str]:
    return [f"host-{number + 1}" for number in range(row.hosts)]


def plan_of(layers: int, names: Sequence[str], split: str) -> Plan:
    """All hosts alike: as many layers for each, or an equal part of every one, or whole experts, with attention whole
    or cut as well."""
    n = len(names)
    if split in ("single", "pipeline"):
        bounds = [layers * place // n for place in range(n + 1)]
        return Plan(
            tuple(Stage((name,), first, last) for name, first, last in zip(names, bounds[:-1], bounds[1:], strict=True))
        )
    share = Share(experts=1 / n) if split == "expert" else Share.even(n)
    return Plan((Stage(tuple(names), 0, layers, (share,) * n, experts=split.endswith("expert")),))
