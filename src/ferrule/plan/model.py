"""What the planner knows of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSpec:
    """A model as the planner sees it: counts and sizes, no weights.

    ``layer_bytes`` has one entry per decoder layer; ``embedding_bytes`` and ``head_bytes`` are what the first and the
    last pipeline stage hold beside their layers (with tied embeddings and one stage the table is counted once).
    ``tensor_refusal`` and ``pipeline_refusal`` say why a strategy cannot be used for this architecture, or are None.
    """

    architecture: str
    layers: int
    query_heads: int
    key_value_heads: int
    vocab_size: int
    max_context: int
    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    tied: bool
    tensor_refusal: str | None
    pipeline_refusal: str | None
