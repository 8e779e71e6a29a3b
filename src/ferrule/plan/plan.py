"""What each rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["single", "tensor", "pipeline", "expert", "hybrid"]


@dataclass(frozen=True)
class Shard:
    """The part of a model that one rank holds.

    ``stage`` is its place in the pipeline and ``first_layer``:``last_layer`` the half-open range of decoder layers
    of that stage; ``part`` of ``parts`` is its share of every tensor of those layers. ``weight_bytes`` is predicted
    from the checkpoint.
    """

    rank: int
    stage: int
    first_layer: int
    last_layer: int
    part: int
    parts: int
    has_embedding: bool
    has_head: bool
    weight_bytes: int


@dataclass(frozen=True)
class Plan:
    """How a model is split over ranks. Rank ``stage * tensor + part`` holds part ``part`` of stage ``stage``."""

    strategy: Strategy
    tensor: int
    pipeline: int
    layers: int
    shards: tuple[Shard, ...]
    reason: str

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline

    @property
    def driver(self) -> int:
        """The rank that schedules and samples: the first of the last stage, since it is there that logits appear."""
        return (self.pipeline - 1) * self.tensor
