"""Operation counts of a layer in the built-in engine's step program (engine/rank/step/describe.py).

A test counts those of every family's programs, as `ferrule plan --explain-step` shows them.
"""

from __future__ import annotations

from ferrule.model.families.family import PROGRAMS, Family
from ferrule.model.families.fields import Fields
from ferrule.model.layer import AttentionSpec, ExpertsSpec

OUTER_OPERATIONS = 5
"""Embedding, choice of rows, last norm, output matrix, joined logits."""


def has_program(fields: Fields) -> bool:
    return fields.get("model_type")[1] in PROGRAMS


def program_operations(
    fields: Fields, family: Family, attention: AttentionSpec | None, experts: ExpertsSpec | None, shared_width: int
) -> int | None:
    """Of one layer; None for families without step programs."""
    if attention is None or not has_program(fields):
        return None
    residual = 3 if family.norms == 4 else 1  # the sum over ranks, or that, a norm and the addition
    if attention.kind == "latent":
        # Of two products and a norm come the queries, or of one; then the latents' norm, two rotations, and attention
        # between two products by head.
        mixing = (3 if fields.get("q_lora_rank")[1] is not None else 2) + 6
    else:
        normed = family.query_norm == "head" and family.has(family.query_norm_if, fields.data)
        mixing = 1 + 2 * normed + 2 + 1
    block = 3  # products and what lies between
    if experts is not None:
        block = 2 + (4 if shared_width else 0)  # router, experts; the shared ones and their addition
    return 1 + mixing + 1 + residual + 1 + block + residual
