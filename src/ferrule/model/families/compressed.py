"""Compressed attention by ``config.json`` (DeepSeek-V4, 2026, section 2.3): which layers have entries that stand for
several tokens, and what is kept of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

from ferrule.errors import ConfigError
from ferrule.model.families.fields import Fields
from ferrule.model.layer import AttentionSpec

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
LAYER_TYPES = frozenset({SLIDING, SPARSE, HEAVY})
_BY_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""Published configurations have numbers for them."""
_SHORT = {SPARSE: ("compress_rate_csa", 4), HEAVY: ("compress_rate_hca", 128)}


def compressed_attention(fields: Fields, index: int, layers: int, heads: int) -> AttentionSpec:
    """Attention of layer ``index``. Raises `ConfigError` for a kind of layer that the family does not have."""
    kind, width = _kinds(fields, layers)[index], fields.integer("head_dim")
    window, groups = fields.integer("sliding_window"), fields.integer("o_groups")
    if heads % groups:
        raise ConfigError(f"{fields.file}: num_attention_heads {heads} does not divide by {groups} o_groups")
    found = AttentionSpec("compressed", heads, 1, width, width, window, groups=groups, newest=(window - 1) * width)
    if kind == SLIDING:
        return found
    rate = _rate(fields, kind)
    index_width = fields.integer("index_head_dim") if kind == SPARSE else 0
    # Values and their logits of a window, and of one that overlaps it twice as many of two windows.
    inputs = 2 * rate * width if kind == HEAVY else 8 * rate * (width + index_width)
    return AttentionSpec(
        "compressed", heads, 1, width, width, window, groups=groups, newest=found.newest + inputs, rate=rate,
        most=fields.integer("index_topk") if index_width else None,
        index_heads=fields.integer("index_n_heads") if index_width else 0, index_width=index_width,
    )  # fmt: skip


def hashed(fields: Fields, index: int, layers: int) -> bool:
    """Whether the tokens themselves choose the experts of layer ``index``."""
    kinds = fields.each("mlp_layer_types", layers)
    return index < fields.integer("num_hash_layers", least=0) if kinds is None else kinds[index] == "hash_moe"


def _kinds(fields: Fields, layers: int) -> list[str]:
    told = fields.each("layer_types", layers)
    if told is None:
        ratios = fields.each("compress_ratios", layers)
        if ratios is None:
            return [SPARSE if index > 1 and index % 2 else HEAVY for index in range(layers)]
        told = [_BY_RATIO.get(ratio, str(ratio)) if isinstance(ratio, int) else str(ratio) for ratio in ratios]
    unknown = next((kind for kind in told if not isinstance(kind, str) or kind not in LAYER_TYPES), None)
    if unknown is not None:
        known = ", ".join((*sorted(LAYER_TYPES), *map(str, _BY_RATIO)))
        raise ConfigError(f"{fields.file}: a layer is of kind {unknown!r}; one of deepseek_v4 is one of {known}")
    return told


def _rate(fields: Fields, kind: str) -> int:
    name, usual = _SHORT[kind]
    _, rates = fields.get("compress_rates")
    told = rates.get(kind) if isinstance(rates, Mapping) else None
    return Fields({name: told, **fields.data}, fields.file).integer(name, default=usual)
