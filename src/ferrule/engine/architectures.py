"""What transformers' configurations say about splitting an architecture, and what Ferrule adds. Needs no torch."""

from __future__ import annotations

from typing import Any

SUPPLEMENTS: dict[str, dict[str, str]] = {
    # transformers shares out only gpt-oss's experts; its attention is ordinary, with one sink per query head.
    "gpt_oss": {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.self_attn.sinks": "query_heads",
    },
    # The heads of latent attention come out of q_b_proj (or q_proj) and kv_b_proj; the latents stay whole.
    "deepseek_v3": {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.q_b_proj": "colwise",
        "layers.*.self_attn.kv_b_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
    },
    # transformers gathers these fused projections and cuts again; by whole heads nothing needs to be gathered.
    "phi3": {
        "layers.*.self_attn.qkv_proj": "fused_qkv",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_up_proj": "packed_colwise",
        "layers.*.mlp.down_proj": "rowwise",
    },
    "glm": {"layers.*.mlp.gate_up_proj": "packed_colwise", "layers.*.mlp.down_proj": "rowwise"},
    "glm4": {"layers.*.mlp.gate_up_proj": "packed_colwise", "layers.*.mlp.down_proj": "rowwise"},
}
"""What Ferrule adds to, or does better than, transformers' plan; by model type."""


def plan_of(config: Any) -> dict[str, str] | None:
    """Pattern -> style for every module of the base model that is shared out, or None where there is no plan."""
    plan = dict(config.base_model_tp_plan or config.base_model_ep_plan or {})
    if not plan:
        return None
    return plan | SUPPLEMENTS.get(config.model_type, {})


def key_value_heads(config: Any) -> int:
    """Key/value heads as attention sees them: latent attention has as many as query heads."""
    if getattr(config, "kv_lora_rank", None):
        return int(config.num_attention_heads)
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
