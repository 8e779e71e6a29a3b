"""Tiny models with random weights, made from transformers' own configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

COMMON: dict[str, Any] = {
    "vocab_size": 131,  # prime, so that no number of ranks divides it
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

LATENTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}

EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}

DSA: dict[str, Any] = {
    **EXPERTS,
    **LATENTS,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "index_n_heads": 16,  # scores of few heads are often equal, that is 0
    "index_head_dim": 16,
    "index_topk": 6,
}

WINDOWED = ("full_attention", "sliding_attention")

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": {**EXPERTS, "num_experts": 6, "mlp_only_layers": [1], "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "deepseek_v3": {
        **EXPERTS,
        **LATENTS,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
    },
    "phi3": {"sliding_window": None},
    "glm4_moe": {
        **EXPERTS,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    # beyond the ten that must run: other shapes of the same ideas
    "gemma2": {"tie_word_embeddings": True, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": 8},
    "glm4": {},
    "olmo2": {},
    "deepseek_v2": {
        **EXPERTS,
        **LATENTS,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "topk_method": "greedy",
    },
    "gpt_neox": {"num_key_value_heads": 8},
    "starcoder2": {"sliding_window": None},
    "mimo_v2_flash": {
        **EXPERTS,
        "n_routed_experts": 4,
        "v_head_dim": 12,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in WINDOWED},
    },
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "qwen2_moe": {
        **EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 32,
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["full_attention", "full_attention", "sliding_attention", "sliding_attention"],
    },
    "deepseek_v32": DSA,
    "glm_moe_dsa": {**DSA, "indexer_types": ["full", "shared", "full", "shared"]},
    "deepseek_v4": {
        **EXPERTS,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "qk_rope_head_dim": 8,
        "n_routed_experts": 8,
        "q_lora_rank": 24,
        "layer_types": [
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "sliding_attention",
            "compressed_sparse_attention",
        ],
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8},
        "num_hash_layers": 3,
        "sliding_window": 4,
        "o_groups": 4,
        "o_lora_rank": 8,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_topk": 3,
        "hc_mult": 2,
    },
    "glm4_moe_lite": {
        **EXPERTS,
        **LATENTS,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 24,
    },
    "youtu": {**LATENTS, "q_lora_rank": None},
    "minicpm3": {
        **LATENTS,
        "q_lora_rank": 24,
        "scale_emb": 12,
    },
    "gemma3n_text": {
        "intermediate_size": [96] * 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 8,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": None,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 131,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
    },
    "llama4_text": {
        "intermediate_size": 32,
        "intermediate_size_mlp": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "interleave_moe_layer_step": 2,
        "no_rope_layer_interval": 2,
        "attention_chunk_size": 6,
        "floor_scale": 4,
    },
    "cohere": {"use_qk_norm": True, "tie_word_embeddings": True},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.4,
        "logits_scaling": 2,
    },
    "afmoe": {**EXPERTS, "num_experts": 4, "num_dense_layers": 1, "sliding_window": 8, "mup_enabled": True},
}

COUNTED: dict[str, dict[str, Any]] = {
    "gemma": {"tie_word_embeddings": True},
    "glm": {},
    "olmo3": {"sliding_window": 8},
    "smollm3": {"tie_word_embeddings": True},
    "seed_oss": {},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
"""More families that the planner counts by arithmetic."""

SEEING: dict[str, dict[str, Any]] = {
    "qwen2_5_vl_text": {},
    "qwen2_vl_text": {},
    "qwen3_vl_text": {},
    "qwen3_vl_moe_text": {**EXPERTS, "num_experts": 6},
}
"""Language models that are parts of others, which take images (vision/seeing_models.py)."""

_LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "mamba_expand": 1,
}
_SHARED: dict[str, Any] = {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32}
RECURRENT: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**EXPERTS, "layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1, "num_experts": 4},
    "qwen3_next": {**_LINEAR, **_SHARED},
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": {**_LINEAR, **_SHARED},
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": _LINEAR["layer_types"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "position_embedding_type": "rope",
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "nemotron_h": {
        **EXPERTS,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
        "chunk_size": 8,
        "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
    },
    "kimi_linear": {
        "layer_types": _LINEAR["layer_types"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "num_experts": 4,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 32,
        "num_key_value_heads": 8,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
    },
}
"""Families whose layers keep a state."""

REFUSED: dict[str, dict[str, Any]] = {"doge": {}, "hrm_text": {}, "diffllama": {}, "bert": {}, "axk2": DSA}
"""Architectures whose attention this engine would get wrong."""

REQUIRED = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma3_text", "gpt_oss", "deepseek_v3", "phi3", "glm4_moe",
)  # fmt: skip


def long_rope(border: int) -> dict[str, Any]:
    """Fields of a model that has other rotary frequencies for sequences of more than ``border`` tokens."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": border}
    factors = {"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [2.0, 3.0, 5.0, 8.0]}
    return {"rope_parameters": rope | factors, "original_max_position_embeddings": border}


def make(name: str, directory: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Save a random model of architecture ``name`` into ``directory`` and give it back.

    Every parameter is drawn at random, norms and biases too, so that one that is dropped or cut wrongly shows.
    """
    config = AutoConfig.for_model(name, **{**COMMON, **(CONFIGS | COUNTED | RECURRENT | REFUSED)[name], **changes})
    torch.manual_seed(hash_of(name))
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = 1.0 if "norm" in key and key.endswith("weight") else 0.0
            parameter.copy_(centre + 0.08 * torch.randn(parameter.shape))
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape))
            if key.endswith("tid2eid"):  # of each token different experts
                buffer.copy_(torch.rand(buffer.shape[0], config.n_routed_experts).argsort()[:, : buffer.shape[1]])
    model.save_pretrained(directory)
    return directory


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**index for index, letter in enumerate(name)) % (1 << 31)
