"""The tensors of DeepSeek-V4's layers that no other family has, by arithmetic, named as they were published."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.model.families.shape import Shape
from ferrule.model.layer import AttentionSpec
from ferrule.model.storage import Tensor


def compressed_tensors(shape: Shape, attention: AttentionSpec, name: str) -> Iterator[Tensor]:
    """Of one layer's attention. ``name``: the layer's."""
    hidden, fields, width, inner = shape.hidden_size, shape.fields, attention.key_width, f"{name}.attn"
    rank, heads, groups = fields.integer("q_lora_rank"), attention.query_heads, attention.groups
    narrow = groups * fields.integer("o_lora_rank")
    yield Tensor(f"{inner}.wq_a.weight", (rank, hidden))
    yield Tensor(f"{inner}.q_norm.weight", (rank,), "plain")
    yield Tensor(f"{inner}.wq_b.weight", (heads * width, rank))
    yield Tensor(f"{inner}.wkv.weight", (width, hidden))
    yield Tensor(f"{inner}.kv_norm.weight", (width,), "plain")
    yield Tensor(f"{inner}.attn_sink", (heads,), "plain")
    yield Tensor(f"{inner}.wo_a.weight", (narrow, heads * width // groups))
    yield Tensor(f"{inner}.wo_b.weight", (hidden, narrow))
    if attention.rate:
        double = 2 if attention.index_width else 1
        yield from _compressor(f"{inner}.compressor", hidden, width, double, attention.rate)
    if attention.index_width:
        index = f"{inner}.indexer"
        yield from _compressor(f"{index}.compressor", hidden, attention.index_width, 2, attention.rate)
        yield Tensor(f"{index}.wq_b.weight", (attention.index_heads * attention.index_width, rank))
        yield Tensor(f"{index}.weights_proj.weight", (attention.index_heads, hidden))


def _compressor(name: str, hidden: int, width: int, double: int, rate: int) -> Iterator[Tensor]:
    for each in ("wkv", "wgate"):
        yield Tensor(f"{name}.{each}.weight", (double * width, hidden))
    yield Tensor(f"{name}.ape", (rate, double * width), "plain")
    yield Tensor(f"{name}.norm.weight", (width,), "plain")


def hyper_tensors(shape: Shape, name: str) -> Iterator[Tensor]:
    """What a layer of that ``name`` mixes its hidden states by, before and behind both of its parts."""
    for part in ("attn", "ffn"):
        yield from _mixing(f"{name}.hc_{part}", shape, (2 + shape.streams) * shape.streams, 3)


def hyper_head(shape: Shape) -> Iterator[Tensor]:
    """What the last of them are joined by."""
    yield from _mixing("model.hc_head", shape, shape.streams, 1)


def _mixing(name: str, shape: Shape, outputs: int, scales: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}_fn", (outputs, shape.streams * shape.hidden_size), "plain")
    yield Tensor(f"{name}_base", (outputs,), "plain")
    yield Tensor(f"{name}_scale", (scales,), "plain")
