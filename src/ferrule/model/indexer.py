"""Indexers of sparse attention, by a model's configuration (transformers' `DeepseekV32Config`, `GlmMoeDsaConfig`)."""

from __future__ import annotations

from dataclasses import replace

from ferrule.model.fields import Fields
from ferrule.model.layer import AttentionSpec


def indexed(attention: AttentionSpec, fields: Fields, index: int, layers: int) -> AttentionSpec:
    """``attention`` of layer ``index`` with what its indexer adds; some layers take the choice of an earlier one."""
    found = replace(attention, most=fields.integer("index_topk"))
    if not _chooses(fields, index, layers):
        return found
    return replace(found, index_heads=fields.integer("index_n_heads"), index_width=fields.integer("index_head_dim"))


def _chooses(fields: Fields, index: int, layers: int) -> bool:
    kinds = fields.each("indexer_types", layers)
    if kinds is not None:
        return bool(kinds[index] == "full")
    _, pattern = fields.get("index_topk_pattern")
    if isinstance(pattern, str | list) and len(pattern) > index:
        return pattern[index] in ("F", "full")
    every = max(1, fields.integer("index_topk_freq", default=1, least=0))
    offset = fields.integer("index_skip_topk_offset", default=2, least=0)
    return max(index - offset + 1, 0) % every == 0
