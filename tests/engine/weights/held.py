"""Tensors that the engine's ranks hold of a model, loaded without a fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from thread_group import Shared, ThreadGroup

from ferrule.engine.rank.model import blueprint
from ferrule.engine.rank.step.describe import Unfit, describe
from ferrule.engine.rank.step.load import load_weights
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.plan import Plan, Shard


def held_bytes(directory: Path, plan: Plan, weights: str | None = None, dtype: str = "auto") -> tuple[int, ...]:
    """Bytes of weights by rank: of packed matrices in the native library, and of tensors."""
    return tuple(_held(directory, shard, weights, dtype) for shard in plan.shards)


def _held(directory: Path, shard: Shard, weights: str | None, dtype: str) -> int:
    group: Any = ThreadGroup(shard.part, Shared(shard.parts))
    with Checkpoint(directory, weights) as checkpoint, torch.inference_mode():
        built = blueprint(directory, dtype, shard, group, checkpoint)
        try:
            description = describe(built.model, built.base, shard, shard.parts)
        except Unfit:
            return built.fill(checkpoint, lambda done, total: None, torch.device("cpu"))
        loaded = load_weights(built, description, checkpoint, lambda done, total: None)
    matrices = {id(each): each.bytes for each in loaded.matrices.values()}
    assert loaded.bytes == sum(matrices.values()) + sum(each.nbytes for each in loaded.vectors.values())
    return loaded.bytes
