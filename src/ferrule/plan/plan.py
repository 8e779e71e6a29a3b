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

Strategy = Literal["single", "tensor", "pipeline", "expert", "context", "hybrid"]


@dataclass(frozen=True)
class Stage:
    """Layers ``first_layer`` up to ``last_layer`` (not included) on ``devices``, cut into ``shares`` of the same order.

    ``experts``: routed experts are given out whole, a share of them to each device, instead of cut. ``exchange``: and
    each device goes on with some of a step's tokens, which are sent to the devices of their experts and come back;
    else all tokens are on every device, and results are summed. ``context``: each device holds the layers whole, and of
    every sequence's keys and values each so-many-th page.
    """

    devices: tuple[str, ...]
    first_layer: int
    last_layer: int
    shares: tuple[Share, ...] = (WHOLE,)
    experts: bool = False
    exchange: bool = False
    context: bool = False

    def __post_init__(self) -> None:
        if self.exchange and not self.experts:
            raise PlanError("tokens can be sent only to experts that are whole on a device")
        if self.exchange and any(share.shared < 1 for share in self.shares):
            raise PlanError("where tokens are sent to their experts, shared ones are whole on every device")
        if not self.devices or len(self.devices) != len(self.shares):
            raise PlanError("a stage needs as many shares as devices, and at least one")
        if not all(0 < part <= 1 for share in self.shares for part in share):
            raise PlanError("shares of a layer are fractions above 0 and up to 1")
        if not 0 <= self.first_layer < self.last_layer:
            raise PlanError(f"a stage of layers {self.first_layer} up to {self.last_layer} holds nothing")
        if self.context and (self.experts or any(share != WHOLE for share in self.shares)):
            raise PlanError("a stage that shares out keys and values by pages holds its layers whole on each device")

    @property
    def width(self) -> int:
        return len(self.devices)

    @property
    def even(self) -> bool:
        return len(set(self.shares)) == 1

    @property
    def cache_part(self) -> float:
        """The part of the tokens of a sequence whose keys and values a device holds."""
        return 1 / self.width if self.context else 1.0


@dataclass(frozen=True)
class Shard:
    """The part of a model that one rank holds.

    ``stage`` is its place in the pipeline and ``first_layer``:``last_layer`` the half-open range of decoder layers
    of that stage; ``part`` of ``parts`` is its place among the stage's ranks, which have these ``shares`` of every
    layer; ``experts``: of the routed ones whole; ``exchange``: to which tokens are sent (see `Stage`). ``context_part``
    of ``context``: its place among ranks that hold these layers alike, and each so-many-th page of the keys and values.
    """

    rank: int
    stage: int
    first_layer: int
    last_layer: int
    part: int
    parts: int
    has_embedding: bool
    has_head: bool
    shares: tuple[Share, ...] = (WHOLE,)
    experts: bool = False
    exchange: bool = False
    context_part: int = 0
    context: int = 1

    @property
    def place(self) -> int:
        """Among all ranks of its stage."""
        return self.context_part if self.context > 1 else self.part


@dataclass(frozen=True)
class Plan:
    """A split of a model over devices: ``stages`` in the order of the layers. Rank numbers count through their devices.

    ``obstacle``: why the built-in engine cannot run it, or None. ``reason``: why this one, for people. ``prompts``:
    another split of the model, on other devices, whose ranks compute prompts for those of this one; None: these do.
    """

    stages: tuple[Stage, ...]
    obstacle: str | None = None
    reason: str = field(default="", compare=False)
    prompts: Plan | None = None

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
        if len({stage.width if stage.context else 0 for stage in self.stages}) != 1:
            raise PlanError("keys and values are shared out by pages among as many ranks on every stage, or on none")
        if self.prompts is not None:
            self._check_prompts(self.prompts)

    def _check_prompts(self, prompts: Plan) -> None:
        if both := sorted(set(prompts.devices) & set(self.devices)):
            raise PlanError(f"{', '.join(both)}: a device is for prompts or for tokens, not for both")
        if prompts.prompts is not None or prompts.layers != self.layers:
            raise PlanError("ranks for prompts hold all layers of the model, and compute all of a prompt by themselves")

    @property
    def alone(self) -> Plan:
        """The same ranks, without others that compute their prompts."""
        return replace(self, prompts=None)

    @property
    def all_devices(self) -> tuple[str, ...]:
        """Those for prompts first, then those of `devices`."""
        return (*(self.prompts.devices if self.prompts is not None else ()), *self.devices)

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
        if self.stages[0].context:
            return "context"
        return "expert" if self.stages[0].experts else "tensor"

    @property
    def tensor(self) -> int:
        """Ranks of the first stage among which each layer is cut."""
        return 1 if self.stages[0].context else self.stages[0].width

    @property
    def context(self) -> int:
        """Ranks of each stage among which keys and values are shared out by pages: of all stages as many."""
        return self.stages[0].width if self.stages[0].context else 1

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
                part=0 if stage.context else part,
                parts=1 if stage.context else stage.width,
                has_embedding=number == 0,
                has_head=number == len(self.stages) - 1,
                shares=(WHOLE,) if stage.context else stage.shares,
                experts=stage.experts,
                exchange=stage.exchange,
                context_part=part if stage.context else 0,
                context=stage.width if stage.context else 1,
            )
            for rank, (number, stage, part) in enumerate(places)
        )

    def sources(self, stage: int) -> tuple[int, ...]:
        """Of each rank of ``stage`` (not the first) the rank of the stage before from which it gets hidden states."""
        before, width = self.stages[stage - 1].width, self.stages[stage].width
        first = sum(each.width for each in self.stages[: stage - 1])
        return tuple(first + place for place in fellows(width, before))

    def source(self, rank: int) -> int:
        """The rank that sends hidden states to ``rank``, which is of no first stage."""
        shard = self.shards[rank]
        return self.sources(shard.stage)[shard.place]

    def receivers(self, rank: int) -> tuple[int, ...]:
        """Ranks to which ``rank``, which is of no last stage, sends hidden states."""
        stage = self.shards[rank].stage + 1
        first = sum(each.width for each in self.stages[:stage])
        return tuple(first + place for place, source in enumerate(self.sources(stage)) if source == rank)

    def on(self, devices: Sequence[str]) -> Plan:
        """The same on other devices, by rank. Raises `PlanError` where they are not as many."""
        if len(devices) != self.world_size:
            raise PlanError(f"{self.world_size} ranks cannot be put on {len(devices)} devices")
        names = iter(devices)
        stages = tuple(replace(stage, devices=tuple(next(names) for _ in stage.devices)) for stage in self.stages)
        return replace(self, stages=stages)

    def because(self, verdict: str) -> Plan:
        """The same with a reason: that the planner chose it, and its ``verdict``."""
        how = _split_text(self.stages, "chosen by the planner")
        return replace(self, reason=f"{how}. {verdict}" if verdict else how)


def split_flags(plan: Plan) -> str:
    """Flags by which a user asks for such a ``plan``, whose stages have as many ranks each."""
    wide = f"--cp {plan.context}" if plan.context > 1 else f"--tp {plan.tensor}"
    return f"{wide} --pp {plan.pipeline}"


def fellows(width: int, before: int) -> list[int]:
    """From which place of a stage of ``before`` ranks each of ``width`` ranks of the next one gets hidden states."""
    return [place * before // width for place in range(width)]


def make_plan(
    model: ModelSpec,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    experts: bool = False,
    exchange: bool = False,
    speeds: Sequence[float] = (),
) -> Plan:
    """The plan of ``tensor * pipeline`` ranks with equal parts, or parts by ``speeds``, as near as heads allow, as a
    user asks for it by ``--tp``, ``--pp`` and ``--shares``. ``experts``: routed ones whole (``--expert-parallel``);
    ``exchange``: to which tokens are sent. ``context``: of ``context * pipeline`` ranks, which hold their layers whole
    (``--context-parallel``).

    Its devices are called ``rank-0`` and so on. Raises `PlanError` where the model cannot be cut that way, saying what
    cannot be shared or which architecture has no plan.
    """
    if min(tensor, pipeline, context) < 1:
        raise PlanError(f"--tp, --pp and --cp must be at least 1, not {tensor}, {pipeline} and {context}")
    if tensor > 1 and context > 1:
        raise PlanError(f"--cp {context} needs each rank to hold its layers whole: leave --tp {tensor} out")
    if context > 1 and (reason := model.context_obstacle):
        raise PlanError(f"--cp {context}: {reason}")
    if experts and tensor == 1:
        raise PlanError("--expert-parallel gives experts to the ranks of --tp, of which there must be 2 or more")
    if experts and (reason := model.expert_obstacle(tensor)):
        raise PlanError(f"--tp {tensor} --expert-parallel: {reason}")
    if exchange and (reason := model.exchange_obstacle):
        raise PlanError(f"--expert-exchange: {reason}; --expert-parallel works without")
    if reason := model.tensor_obstacle(tensor, experts=experts):
        raise PlanError(f"--tp {tensor}: {reason}")
    if pipeline > 1 and model.pipeline_refusal:
        raise PlanError(f"--pp {pipeline}: {model.pipeline_refusal}")
    head_bytes = model.final.bytes if model.tied and pipeline == 1 else model.head_bytes
    spans = split_layers(model.layer_bytes, pipeline, model.embedding_bytes, head_bytes)
    shares = shares_by(model, speeds or (1.0,) * tensor)
    if exchange:
        shares = tuple(share._replace(shared=1.0) for share in shares)
    width = context if context > 1 else tensor
    shares = shares if context == 1 else (WHOLE,) * context
    names = [tuple(f"rank-{number * width + part}" for part in range(width)) for number in range(len(spans))]
    stages = tuple(
        Stage(names[number], first, last, shares, experts, exchange, context > 1)
        for number, (first, last) in enumerate(spans)
    )
    return Plan(stages, reason=_split_text(stages, "balanced by weight bytes"))


def shares_by(model: ModelSpec, speeds: Sequence[float]) -> tuple[Share, ...]:
    """Shares of ranks in proportion to their ``speeds``, as near as whole heads allow; columns and experts are, to a
    block."""
    heads = split_heads(model.query_heads, model.key_value_heads, speeds)
    if len(set(speeds)) == len({each.query_heads for each in heads}) == 1:
        return (Share.even(len(speeds)),) * len(speeds)
    return tuple(
        Share(
            each.query_heads / model.query_heads,
            each.key_value_heads / model.key_value_heads,
            speed / sum(speeds),
            speed / sum(speeds),
            speed / sum(speeds),
        )
        for each, speed in zip(heads, speeds, strict=True)
    )


def _split_text(stages: tuple[Stage, ...], how: str) -> str:
    """``how``: by what its stages were found."""
    widths = sorted({stage.width for stage in stages})
    if len(stages) == 1 and widths == [1]:
        return "one rank holds the whole model"
    parts = [f"{len(stages)} pipeline stages {how}"] if len(stages) > 1 else []
    if len(widths) > 1:
        parts.append(f"of {_and([str(stage.width) for stage in stages])} ranks")
    elif stages[0].context:
        parts.append(f"keys and values by pages on {widths[0]} ranks")
    elif widths != [1]:
        equal = "equal" if all(stage.even for stage in stages) else "unequal"
        parts.append(f"every layer cut in {widths[0]} {equal} parts")
    if any(stage.experts for stage in stages):
        parts.append("experts whole" + ", to which tokens are sent" * any(stage.exchange for stage in stages))
    return ", ".join(parts)


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
