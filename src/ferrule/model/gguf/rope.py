"""Rotary embeddings of a GGUF file, in the words of transformers' configurations."""

from __future__ import annotations

from typing import Any

from ferrule.errors import ModelError
from ferrule.model.gguf.metadata import Metadata

THETA = 10000.0
"""llama.cpp's rotary base where a file says nothing."""
_GEMMA3_LOCAL_THETA = 10000.0
"""Of Gemma 3's layers with a sliding window, which its files do not tell (Gemma 3 report, 2025, section 2)."""


def rope_parameters(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` for ``config``, which is complete otherwise."""
    theta = meta.number("rope.freq_base") or THETA
    found = {"rope_theta": theta, **_partial(meta, config), **_scaling(meta, config)}
    if config["model_type"] == "gpt_oss":
        found["truncate"] = False  # as its own configuration has it; no key tells
    if config["model_type"] == "gemma3_text":
        local = {"rope_theta": _GEMMA3_LOCAL_THETA, "rope_type": "default"}
        return {"full_attention": found, "sliding_attention": local}
    return found


def _partial(meta: Metadata, config: dict[str, Any]) -> dict[str, float]:
    turned, width = meta.one("rope.dimension_count"), config.get("head_dim")
    if not turned or not width or "kv_lora_rank" in config:
        return {}
    return {"partial_rotary_factor": turned / width} if turned < width else {}


def _scaling(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    longest = config.get("max_position_embeddings", 1 << 20)
    original = meta.one("rope.scaling.original_context_length")
    long, short = meta.factors("rope_factors_long.weight"), meta.factors("rope_factors_short.weight")
    if long is not None and short is not None:
        return {
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": original or longest,
            "attention_factor": meta.number("rope.scaling.attn_factor") or 1.0,
        }
    factors = meta.factors("rope_freqs.weight")
    if factors is not None:  # Llama 3's scaling, worked out: the same factors at any length
        return {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "original_max_position_embeddings": longest,
            "attention_factor": 1.0,
        }
    kind = meta.text(f"{meta.architecture}.rope.scaling.type")
    factor = meta.number("rope.scaling.factor") or meta.number("rope.scale_linear")
    if kind in ("", "none") and not (factor and factor != 1.0 and kind == ""):
        return {"rope_type": "default"}
    if kind in ("", "linear"):
        return {"rope_type": "linear", "factor": factor or 1.0}
    if kind == "yarn":
        return _yarn(meta, factor, original or longest)
    raise ModelError(f"{meta.model.file}: rope.scaling.type is {kind[:40]!r}, which is not run here")


def _yarn(meta: Metadata, factor: float | None, original: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor or 1.0,
        "original_max_position_embeddings": original,
        "beta_fast": meta.number("rope.scaling.yarn_beta_fast") or 32.0,
        "beta_slow": meta.number("rope.scaling.yarn_beta_slow") or 1.0,
    }
    multiplier = meta.number("rope.scaling.yarn_log_multiplier")  # a tenth of DeepSeek's mscale_all_dim
    if multiplier:
        found["mscale"] = found["mscale_all_dim"] = round(10 * multiplier, 6)
    return found
