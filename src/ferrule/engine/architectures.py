"""Split plans of architectures: transformers' own, and Ferrule's supplements. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.model import Cuts, no_plan
from ferrule.model.families.encoders import WHOLE, encoder_refusal, is_encoder, padding_positions

LATENT_HEADS = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.q_b_proj": "colwise",
    "layers.*.self_attn.kv_b_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
}
"""The heads of latent attention come out of q_b_proj (or q_proj) and kv_b_proj; the latents stay whole."""

LFM2 = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.feed_forward.w1": "colwise",
    "layers.*.feed_forward.w3": "colwise",
    "layers.*.feed_forward.w2": "rowwise",
}
"""All but the convolutions, which every rank computes."""

SUPPLEMENTS: dict[str, dict[str, str]] = {
    # transformers shares out only gpt-oss's experts; its attention is ordinary, with one sink per query head.
    "gpt_oss": {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.self_attn.sinks": "query_heads",
    },
    "deepseek_v3": LATENT_HEADS,
    # transformers shares out only the experts. The output's groups are of whole heads; all heads share one key.
    "deepseek_v4": {
        "layers.*.self_attn.q_b_proj": "colwise",
        "layers.*.self_attn.sinks": "query_heads",
        "layers.*.self_attn.o_a_proj": "colwise",
        "layers.*.self_attn.o_b_proj": "rowwise",
    },
    "lfm2": LFM2,
    "lfm2_moe": LFM2,
    "qwen3_vl_text": {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    },
    "youtu": LATENT_HEADS,
    # transformers gathers these fused projections and cuts again; by whole heads nothing needs to be gathered.
    "phi3": {
        "layers.*.self_attn.qkv_proj": "fused_qkv",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_up_proj": "packed_colwise",
        "layers.*.mlp.down_proj": "rowwise",
    },
    # transformers leaves its norms whole, which have a weight for each head (where use_qk_norm is set).
    "cohere": {
        "layers.*.self_attn.q_norm.weight": "query_heads",
        "layers.*.self_attn.k_norm.weight": "key_value_heads",
    },
    "glm": {"layers.*.mlp.gate_up_proj": "packed_colwise", "layers.*.mlp.down_proj": "rowwise"},
    "glm4": {"layers.*.mlp.gate_up_proj": "packed_colwise", "layers.*.mlp.down_proj": "rowwise"},
}
"""Supplements to transformers' plans, where Ferrule adds something or does it better; by model type."""


EMBEDDING = "embedding_rowwise"
"""The style of an input embedding, whose rows are shared out here whether the plan says so or not."""

STAGES: dict[str, tuple[str, ...]] = {
    "deepseek_v4": ("embed_tokens", "layers", "hc_head", "norm"),
    "llama4_text": ("embed_tokens", "layers", "norm"),
    "lfm2": ("embed_tokens", "layers", "embedding_norm"),
    "lfm2_moe": ("embed_tokens", "layers", "embedding_norm"),
    "granitemoehybrid": ("embed_tokens", "layers", "norm"),
    "nemotron_h": ("embeddings", "layers", "norm_f"),
    "qwen3_vl_text": ("embed_tokens", "layers", "norm"),
}
"""Modules of the base model in the order in which they run, where transformers has no pipeline plan, or one that leaves
out a module; by model type."""

LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention", "indexed_attention"})
"""Kinds of layers that are run."""
WITHOUT_PAST = frozenset({"moe", "mlp"})
"""Kinds of layers that look at no other token (Nemotron-H)."""
RECURRENT = {
    **dict.fromkeys(("lfm2", "lfm2_moe"), frozenset({"conv"})),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "kimi_linear"), frozenset({"linear_attention"})),
    "granitemoehybrid": frozenset({"linear_attention"}),
    "falcon_h1": frozenset({"hybrid"}),
    "deepseek_v4": frozenset({"compressed_sparse_attention", "heavily_compressed_attention"}),
    "nemotron_h": WITHOUT_PAST | {"linear_attention"},
}
"""Further kinds, of families whose layers keep a state (engine/rank/recurrent.py, special_attention/compressed.py); by
model type."""


def plan_of(config: Any) -> dict[str, str] | None:
    """Pattern -> style for every module of the base model that is shared out, or None where there is no plan."""
    more = SUPPLEMENTS.get(config.model_type, {})
    for told in (config.base_model_tp_plan, config.base_model_ep_plan):
        plan = {pattern: style for pattern, style in (told or {}).items() if style != EMBEDDING}
        if plan:
            return plan | more
    return more or None


def cuts_of(config: Any) -> Cuts | None:
    """Parts that the plan shares out, in the planner's words; None where there is no plan."""
    plan = plan_of(config)
    if plan is None:
        return None
    attention, mixer, dense, routed, shared = (set[str]() for _ in range(5))
    for pattern, style in plan.items():
        if "shared_expert" in pattern:
            shared.add(style)
        elif ".experts" in pattern:
            routed.add(style)
        elif ".mlp." in pattern or ".feed_forward." in pattern:
            dense.add(style)
        elif ".linear_attn." in pattern:
            mixer.add(style)
        else:
            attention.add(style)
    gathered = not attention.isdisjoint({"colwise_gather_output", "colwise_rep"})
    by_heads = not attention.isdisjoint({"colwise", "fused_qkv"})
    return Cuts(
        attention="gathered" if gathered else "heads" if by_heads else None,
        dense="rowwise" in dense,
        shared="rowwise" in shared,
        experts="whole" if "ep_dispatch_experts" in routed else "inside" if "moe_tp_experts" in routed else None,
        sinks=any(pattern.endswith(".sinks") for pattern in plan),
        norms=any(pattern.endswith("q_norm.weight") for pattern in plan),
        mixer="colwise_gather_output" in mixer,
    )


def encodes(config: Any) -> bool:
    """Whether it is an encoder."""
    return is_encoder(_field(config))


def _field(config: Any) -> Callable[[str], Any]:
    return lambda name: getattr(config, name, None)


def layers_refusal(config: Any) -> str | None:
    """Reason why the layers of ``config`` are not run however they are split, or None."""
    if encodes(config) and (refusal := encoder_refusal(_field(config))):
        return refusal
    kinds = frozenset(getattr(config, "layer_types", None) or ())
    if others := kinds - LAYER_TYPES - RECURRENT.get(config.model_type, frozenset()):
        return f"has layers of a kind that this engine does not run: {', '.join(sorted(others))}"
    if streams_of(config) > 1 and config.model_type != "deepseek_v4":
        return "keeps several hidden states of a token side by side in a way that this engine does not run"
    if "chunked_attention" in kinds and not _chunk(config):
        return "has layers of chunked attention, but no attention_chunk_size"
    if getattr(config, "attn_temperature_tuning", None) and config.model_type != "llama4_text":
        return "scales attention by a token's place in its sequence, which this engine does not do"
    return None


def tensor_refusal(config: Any, name: str) -> str | None:
    """Reason why architecture ``name`` cannot be cut by ``--tp``, or None."""
    if encodes(config):
        return WHOLE
    if plan_of(config) is None:
        return no_plan("tensor parallel", name)
    if any(getattr(config, "activation_sparsity_pattern", None) or ()):
        return f"{name} keeps the largest of all activations of a layer, which a rank with a part of them cannot tell"
    return None


def pipeline_refusal(config: Any, name: str) -> str | None:
    """Reason why architecture ``name`` cannot be cut by ``--pp``, or None."""
    if encodes(config):
        return WHOLE
    if not stages_of(config):
        return no_plan("pipeline", name)
    if getattr(config, "indexer_types", None):
        return f"layers of {name} attend to the tokens that earlier ones have chosen"
    if getattr(config, "altup_num_inputs", 1) > 1:
        return f"{name} widens the hidden states before its layers and narrows them behind"
    if getattr(config, "hidden_size_per_layer_input", None):
        return f"every layer of {name} reads an embedding of its own, which only the first stage could look up"
    if getattr(config, "num_kv_shared_layers", 0):
        return f"the last layers of {name} read the keys and values of earlier ones"
    return None


def stages_of(config: Any) -> list[str]:
    """Names of the base model's modules that stages share, in the order in which they run; none without a plan."""
    return list(STAGES.get(config.model_type) or config.base_model_pp_plan or ())


def streams_of(config: Any) -> int:
    """Hidden states of a token side by side between layers: more than one with hyper-connections (Xie et al. 2026)."""
    return int(getattr(config, "hc_mult", None) or 1)


def mask_chunks(config: Any) -> dict[int, int]:
    """Layer -> chunk: its tokens see those of their own chunk only, which is told to the mask alone."""
    kinds = getattr(config, "layer_types", None) or ()
    return {index: _chunk(config) for index, kind in enumerate(kinds) if kind == "chunked_attention"}


def _chunk(config: Any) -> int:
    return int(getattr(config, "attention_chunk_size", None) or 0)


def mask_windows(config: Any) -> dict[int, int]:
    """Layer -> sliding window, for architectures that tell it only to the mask and not to the attention function."""
    window = getattr(config, "sliding_window", None)
    if window is None or config.model_type not in ("phimoe", "qwen2_moe"):
        return {}
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return {index: window for index, kind in enumerate(kinds) if kind == "sliding_attention"}


def short_context(config: Any) -> int | None:
    """Tokens beyond which a sequence has the long frequencies of LongRoPE (Ding et al. 2024); None: all are alike."""
    rope = getattr(config, "rope_parameters", None) or {}
    return int(rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else None


def longest_context(config: Any) -> int:
    """The most tokens of one sequence. Where LongRoPE is of some kinds of layers only, sequences end where its
    frequencies would change: no known model has that."""
    longest = int(getattr(config, "max_position_embeddings", 0) or 1 << 20) - padding_positions(_field(config))
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (value for value in rope.values() if isinstance(value, dict)):
        if parameters.get("rope_type") == "longrope":
            longest = min(longest, int(parameters["original_max_position_embeddings"]))
    return longest


def key_value_heads(config: Any) -> int:
    """Key/value heads as attention sees them: latent attention has as many as query heads."""
    if getattr(config, "kv_lora_rank", None):
        return int(config.num_attention_heads)
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
