"""Plan: a model's split over devices, and the part of it that each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ferrule.errors import PlanError
from ferrule.model.layer import WHOLE, Share
from ferrule.model.spec import ModelSpec
from ferrule.model.split import split_heads
from ferrule.plan.cut import split_layers

Strategy = Literal["single", "tensor", "pipeline", "expert", "hybrid"]


@dataclass(frozen=True)
class Stage:
    """Layers ``first_layer`` up to ``last_layer`` (not included) on ``devices``, cut into ``shares`` of the same order.

    ``experts``: routed experts are given out whole, a share of them to each device, instead of cut.
    """

    devices: tuple[str, ...]
    first_layer: int
    last_layer: int
    shares: tuple[Share, ...] = (WHOLE,)
    experts: bool = False

    def __post_init__(self) -> None:
        if not self.devices or len(self.devices) != len(self.shares):
            raise PlanError("a stage needs as many shares as devices, and at least one")
        if not 0 <= self.first_layer < self.last_layer:
            raise PlanError(f"a stage of layers {self.first_layer} up to {self.last_layer} holds nothing")

    @property
    def width(self) -> int:
        return len(self.devices)

    @property
    def even(self) -> bool:
        return len(set(self.shares)) == 1


@dataclass(frozen=True)
class Shard:
    """The part of a model that one rank holds.

    ``stage`` is its place in the pipeline and ``first_layer``:``last_layer`` the half-open range of decoder layers
    of that stage; ``part`` of ``parts`` is its share of every tensor of those layers.
    """

    rank: int
    stage: int
    first_layer: int
    last_layer: int
    part: int
    parts: int
    has_embedding: bool
    has_head: bool


@dataclass(frozen=True)
class Plan:
    """A split of a model over devices: ``stages`` in the order of the layers. Rank numbers count through their devices.

    ``obstacle``: why the built-in engine cannot run it, or None. ``reason``: why this one, for people.
    """

    stages: tuple[Stage, ...]
    obstacle: str | None = None
    reason: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlanError("a plan needs at least one stage")
        at = 0
        for stage in self.stages:
            if stage.first_layer != at:
                raise PlanError(f"layers {at} up to {stage.first_layer} are on no stage")
            at = stage.last_layer
        if len(set(self.devices)) != len(self.devices):
            raise PlanError("a device is in two stages")

    @property
    def devices(self) -> tuple[str, ...]:
        """By rank."""
        return tuple(device for stage in self.stages for device in stage.devices)

    @property
    def strategy(self) -> Strategy:
        wide = max(stage.width for stage in self.stages) > 1
        if len(self.stages) > 1:
            return "hybrid" if wide else "pipeline"
        if not wide:
            return "single"
        return "expert" if self.stages[0].experts else "tensor"

    @property
    def tensor(self) -> int:
        """Ranks of the first stage; those of each, in a plan that the built-in engine can run."""
        return self.stages[0].width

    @property
    def pipeline(self) -> int:
        return len(self.stages)

    @property
    def layers(self) -> int:
        return self.stages[-1].last_layer

    @property
    def world_size(self) -> int:
        return len(self.devices)

    @property
    def driver(self) -> int:
        """The rank that schedules and samples: the first of the last stage, since it is there that logits appear."""
        return self.world_size - self.stages[-1].width

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """By rank."""
        places = [(number, stage, part) for number, stage in enumerate(self.stages) for part in range(stage.width)]
        return tuple(
            Shard(
                rank=rank,
                stage=number,
                first_layer=stage.first_layer,
                last_layer=stage.last_layer,
                part=part,
                parts=stage.width,
                has_embedding=number == 0,
                has_head=number == len(self.stages) - 1,
            )
            for rank, (number, stage, part) in enumerate(places)
        )

    def on(self, devices: Sequence[str]) -> Plan:
        """The same on other devices, by rank. Raises `PlanError` where they are not as many."""
        if len(devices) != self.world_size:
            raise PlanError(f"{self.world_size} ranks cannot be put on {len(devices)} devices")
        names = iter(devices)
        stages = tuple(replace(stage, devices=tuple(next(names) for _ in stage.devices)) for stage in self.stages)
        return replace(self, stages=stages)

    def because(self, verdict: str) -> Plan:
        """The same with a reason: that the planner chose it, and its ``verdict``."""
        how = _split_text(self.tensor, self.pipeline, "chosen by the planner")
        return replace(self, reason=f"{how}. {verdict}" if verdict else how)


def make_plan(model: ModelSpec, *, tensor: int = 1, pipeline: int = 1) -> Plan:
    """The plan of ``tensor * pipeline`` ranks with equal parts, as a user asks for it by ``--tp`` and ``--pp``.

    Its devices are called ``rank-0`` and so on. Raises `PlanError` where the model cannot be cut that way, saying what
    does not divide or which architecture has no plan.
    """
    if tensor < 1 or pipeline < 1:
        raise PlanError(f"--tp and --pp must be at least 1, not {tensor} and {pipeline}")
    if tensor > 1:
        if model.tensor_refusal:
            raise PlanError(f"--tp {tensor}: {model.tensor_refusal}")
        for part in range(tensor):
            split_heads(model.query_heads, model.key_value_heads, part, tensor)
    if pipeline > 1 and model.pipeline_refusal:
        raise PlanError(f"--pp {pipeline}: {model.pipeline_refusal}")
    head_bytes = model.final.bytes if model.tied and pipeline == 1 else model.head_bytes
    spans = split_layers(model.layer_bytes, pipeline, model.embedding_bytes, head_bytes)
    stages = tuple(
        Stage(
            tuple(f"rank-{number * tensor + part}" for part in range(tensor)),
            first,
            last,
            (Share.even(tensor),) * tensor,
        )
        for number, (first, last) in enumerate(spans)
    )
    return Plan(stages, reason=_split_text(tensor, pipeline, "balanced by weight bytes"))


def _split_text(tensor: int, pipeline: int, how: str) -> str:
    """``how``: by what its stages were found."""
    if tensor == pipeline == 1:
        return "one rank holds the whole model"
    parts = [f"{pipeline} pipeline stages {how}"] if pipeline > 1 else []
    parts += [f"every layer cut in {tensor} equal parts"] if tensor > 1 else []
    return ", ".join(parts)
