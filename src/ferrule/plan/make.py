"""Make a plan from a model and the split that the user asked for."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.errors import PlanError
from ferrule.model.layer import Share
from ferrule.model.spec import ModelSpec
from ferrule.model.split import split_heads, split_layers
from ferrule.plan.layout import Layout
from ferrule.plan.plan import Plan, Shard, Strategy


def _strategy(tensor: int, pipeline: int) -> Strategy:
    if tensor == 1:
        return "single" if pipeline == 1 else "pipeline"
    return "tensor" if pipeline == 1 else "hybrid"


def make_plan(model: ModelSpec, *, tensor: int = 1, pipeline: int = 1) -> Plan:
    """Split ``model`` over ``tensor * pipeline`` ranks.

    Raises `PlanError` where the model cannot be cut that way, saying what does not divide or which architecture has
    no plan.
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
    stages = split_layers(model.layer_bytes, pipeline, model.embedding_bytes, head_bytes)
    return _plan(model, tensor, stages, _reason(tensor, pipeline))


def plan_of_layout(model: ModelSpec, layout: Layout, verdict: str = "") -> Plan:
    """The engine's plan for a layout that it can run; rank r is on ``layout.devices[r]``. ``verdict``: why this one.

    Raises `PlanError` for one that it cannot, with why.
    """
    if layout.obstacle is not None:
        raise PlanError(f"{model.name} cannot be split so: {layout.obstacle}")
    stages = [(stage.first_layer, stage.last_layer) for stage in layout.stages]
    tensor = layout.stages[0].width
    reason = _reason(tensor, len(stages), "chosen by the planner")
    return _plan(model, tensor, stages, f"{reason}. {verdict}" if verdict else reason)


def _plan(model: ModelSpec, tensor: int, stages: Sequence[tuple[int, int]], reason: str) -> Plan:
    pipeline = len(stages)
    shards = []
    for stage, (first, last) in enumerate(stages):
        size = model.rank_bytes(Share.even(tensor), model.vocabulary_share(tensor), first_layer=first, last_layer=last)
        shards += [
            Shard(
                rank=stage * tensor + part,
                stage=stage,
                first_layer=first,
                last_layer=last,
                part=part,
                parts=tensor,
                has_embedding=stage == 0,
                has_head=stage == pipeline - 1,
                weight_bytes=size,
            )
            for part in range(tensor)
        ]
    return Plan(
        strategy=_strategy(tensor, pipeline),
        tensor=tensor,
        pipeline=pipeline,
        layers=model.layers,
        shards=tuple(shards),
        reason=reason,
    )


def _reason(tensor: int, pipeline: int, balanced: str = "balanced by weight bytes") -> str:
    if tensor == pipeline == 1:
        return "one rank holds the whole model"
    parts = []
    if pipeline > 1:
        parts.append(f"{pipeline} pipeline stages {balanced}")
    if tensor > 1:
        parts.append(f"every layer cut in {tensor} equal parts")
    return ", ".join(parts)
