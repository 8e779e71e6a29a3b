"""Weights in the built-in engine's memory: bytes of each tensor on a rank with a share of it, exactly.

Families with step programs have matrices in blocks (`packing`) and all else as float32; what runs through transformers'
modules has plain tensors, of which only linear layers and experts are packed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ferrule.model.layer import AttentionSpec, Kind
from ferrule.model.names import Place, is_latents, is_router
from ferrule.model.packing import Cut, Matrices, Numbers, Packing, Pieces, together

FLOAT32 = MOST_COMPUTED_BYTES = 4
"""Bytes of a number. Weights in float64 are computed with in float32."""

BY_COPIES: Cut = "copies"
_COLUMNS = re.compile(
    r"(?:^|\.)(?:o_proj|out_proj|dense|down_proj|c_proj|dense_4h_to_h|fc2|w2|attn_output|ffn_down(?:_exps|_shexp)?|wo_b|o_b_proj)(?:[._]|$)"
)
"""Products whose inputs are shared out."""
_HALF = re.compile(r"(?:^|\.)(?:gate_proj|up_proj|w1|w3|ffn_gate_exps|ffn_up_exps)\.")
"""Of an expert: gate and up are one matrix."""
_BY_GROUP = re.compile(r"\.(?:wo_a|o_a_proj)\.")
"""Matrices that transformers' modules multiply by in parts, and hold as numbers."""
_FLOAT32 = re.compile(r"(?:^|[._])(?:hc_(?:attn_|ffn_|head_)?fn|(?:attn|ffn)_hc\.fn|ape|position_bias)$")
"""Matrices that DeepSeek-V4 computes with in float32, as with all of its vectors."""
_TOKENS = re.compile(r"\.tid2eid$")
WHOLE_NUMBER = 8
"""Bytes of the number of an expert in tables of them (`_TOKENS`)."""
_STACK = re.compile(r"experts\.(?:gate_up|down)_proj$")


@dataclass(frozen=True)
class Tensors:
    """``copies`` of a tensor of the model: its ``shape`` as numbers, experts first where it is a stack, and how a
    matrix of it is packed (None: it is plain)."""

    shape: tuple[int, ...]
    packing: Packing | None = None
    copies: int = 1


@dataclass(frozen=True)
class Holding:
    """Way in which the engine runs a model. ``program``: as a step program. ``number_bytes``: of what it computes in.
    ``whole_experts``: are given out. ``inputs_first`` and ``float32_router``: as of `Family`. ``float32_steps``: the
    biases of a recurrence's steps are held so; ``float32_vectors``: all vectors are, and some matrices.
    ``gated_experts``: gate and up are one matrix."""

    program: bool
    number_bytes: int
    whole_experts: bool
    inputs_first: bool
    float32_router: Literal["bias", "all"] | None = None
    float32_steps: bool = False
    float32_vectors: bool = False
    gated_experts: bool = True

    def pieces(
        self, name: str, told: Tensors, kind: Kind | Place, *, cut: bool, attention: AttentionSpec | None = None
    ) -> Pieces:
        """Pieces held of tensor ``name`` of this ``kind``. ``cut``: it is shared out. ``attention``: of its layer."""
        return together(self._pieces(name, told, kind, cut, attention))

    def _pieces(
        self, name: str, told: Tensors, kind: Kind | Place, cut: bool, attention: AttentionSpec | None
    ) -> Iterator[Matrices | Numbers]:
        vector = len(told.shape) < 2 or name.endswith("bias")
        latents = attention is not None and attention.kind == "latent" and is_latents(name)
        if _TOKENS.search(name):
            yield Numbers(WHOLE_NUMBER, cut, told.copies * math.prod(told.shape))
            return
        numbers = latents or _BY_GROUP.search(name) is not None
        if vector or not (self.program or (not numbers and _linear(name, told, kind))):
            kept = self.float32_router == "all" or (self.float32_router == "bias" and vector)
            steps = self.float32_steps and name.endswith(".dt_bias")
            own = self.float32_vectors and (len(told.shape) < 2 or _FLOAT32.search(name) is not None)
            wide = self.program or steps or own or (kept and is_router(name))
            yield Numbers(FLOAT32 if wide else self.number_bytes, cut, told.copies * math.prod(told.shape))
            return
        if latents and attention is not None:
            packing = None if ".attn_v_b." in name else told.packing
            yield from self._by_head(name, packing, attention, cut)
            return
        *stack, rows, columns = told.shape
        if self.inputs_first and _STACK.search(name):
            rows, columns = columns, rows
        how: Cut = "columns" if shared_inputs(name) and kind != "mixer" else "rows"
        joined = 2 if kind == "routed" and self.gated_experts and _HALF.search(name) else 1
        if kind == "routed" and self.whole_experts:
            how = "copies"
        one = Matrices(rows * joined, columns, _by_row(told.packing, columns), self.number_bytes, how if cut else None)
        yield replace(one, copies=told.copies * math.prod(stack) / joined)

    def _by_head(self, name: str, packing: Packing | None, attention: AttentionSpec, cut: bool) -> Iterator[Matrices]:
        """The projection of latents to keys and values: of each head a matrix of plain numbers, which is turned, and
        one as it is stored. Some files have them in two tensors, which both become numbers."""
        rank, how = attention.latent_rank, BY_COPIES if cut else None
        key = attention.key_width - (attention.latent_width - rank)
        if ".attn_v_b." not in name:
            yield Matrices(rank, key, None, self.number_bytes, how, attention.query_heads)
        if ".attn_k_b." not in name:
            packed = _by_row(packing, rank)
            yield Matrices(attention.value_width, rank, packed, self.number_bytes, how, attention.query_heads)


def shared_inputs(name: str) -> bool:
    """Whether the inputs of product ``name`` are what is shared out."""
    return _COLUMNS.search(name) is not None


def _by_row(packing: Packing | None, columns: int) -> Packing | None:
    """``packing``, with one name for groups of a whole row."""
    return replace(packing, group=0) if packing is not None and packing.group >= columns else packing


def _linear(name: str, told: Tensors, kind: Kind | Place) -> bool:
    """Whether a linear layer or the experts of transformers' modules multiply by the packed weight."""
    chooses = is_router(name) and "shared_expert_gate" not in name
    return told.packing is not None and kind != "embedding" and not chooses
