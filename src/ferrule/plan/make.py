"""Make a plan from a model and the split that the user asked for."""

from __future__ import annotations

from ferrule.errors import PlanError
from ferrule.plan.model import ModelSpec
from ferrule.plan.model_layer import Share
from ferrule.plan.plan import Plan, Shard, Strategy
from ferrule.plan.split import split_heads, split_layers


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
        reason=_reason(tensor, pipeline),
    )


def _reason(tensor: int, pipeline: int) -> str:
    if tensor == pipeline == 1:
        return "one rank holds the whole model"
    parts = []
    if pipeline > 1:
        parts.append(f"{pipeline} pipeline stages balanced by weight bytes")
    if tensor > 1:
        parts.append(f"every layer cut in {tensor} equal parts")
    return ", ".join(parts)
