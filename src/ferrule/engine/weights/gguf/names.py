"""Names of a GGUF file's tensors -> those of transformers' modules, family by family.

llama.cpp's names are those of its ``llama-arch.cpp``; transformers' are those of its modules' parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ferrule.errors import ModelError

BLOCK = re.compile(r"blk\.(\d+)\.(.+)$")
IGNORED = re.compile(r"(^|\.)rope_(freqs|factors_long|factors_short)\.weight$|\.attn_rot_embd\.")
"""Tables that the configuration holds, or that are computed."""

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Without ``.weight`` and ``.bias``, which are the same on both sides."""

_EXPERTS = {"ffn_gate_inp": "mlp.gate"}
_SHARED = {f"ffn_{each}_shexp": f"mlp.shared_experts.{each}_proj" for each in ("gate", "up", "down")}
_QWEN2_MOE = {
    **_EXPERTS,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{key: value.replace("shared_experts", "shared_expert") for key, value in _SHARED.items()},
}
_CORRECTED = {"exp_probs_b": "mlp.gate.e_score_correction_bias"}
_SHORT_CONVOLUTIONS = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_MAMBA = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt": "mamba.dt_bias",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
_HALVES = ("ffn_gate", "ffn_up")
_DELTA = {
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_EMBEDDING_NORM = dict.fromkeys(("token_embd_norm", "output_norm"), "model.embedding_norm")
"""Of LFM2, whose last norm goes by either name."""
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}


@dataclass(frozen=True)
class Family:
    """``layer``: names within a layer beside `_LAYER`'s. ``turned``: queries and keys are stored in llama.cpp's order
    of rows. ``added``: what norms are stored with added to them. ``transposed``: transformers has the experts' inputs
    before their outputs, and gate and up alternate. ``top``: names beside `TOP`'s. ``experts``: where a layer's are.
    ``convolved``: stored without the dimension of a depthwise convolution's one input. ``fused``: names within a layer
    of pairs that are one matrix here. ``gated``: experts have gates."""

    layer: dict[str, str] = field(default_factory=dict)
    turned: bool = False
    added: float = 0.0
    transposed: bool = False
    top: dict[str, str] = field(default_factory=dict)
    experts: str = "mlp.experts"
    convolved: frozenset[str] = frozenset({"ssm_conv1d"})
    fused: dict[str, str] = field(default_factory=dict)
    gated: bool = True

    def name(self, leaf: str) -> str | None:
        return self.layer.get(leaf) or _LAYER.get(leaf)


_LFM2 = Family(_SHORT_CONVOLUTIONS, top=_EMBEDDING_NORM, convolved=frozenset({"shortconv.conv"}))
_GEMMA = Family({}, added=1.0)
_DEEPSEEK = Family({**_LATENT, **_EXPERTS, **_SHARED, **_CORRECTED})

FAMILIES: dict[str, Family] = {
    "llama": Family(turned=True),
    "mistral": Family(turned=True),
    "mixtral": Family(_EXPERTS, turned=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen2_moe": Family(_QWEN2_MOE),
    "qwen3_next": Family(
        {**_QWEN2_MOE, **_DELTA, "post_attention_norm": "post_attention_layernorm"},
        added=1.0,
        fused=dict.fromkeys(("attn_qkv", "attn_gate"), "linear_attn.in_proj_qkvz"),
    ),
    "qwen3_moe": Family(_EXPERTS),
    "gemma": _GEMMA,
    "gemma2": Family(_FOUR_NORMS, added=1.0),
    "gemma3_text": Family(_FOUR_NORMS, added=1.0),
    "phi3": Family({"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "gpt_oss": Family(
        {
            "post_attention_norm": "post_attention_layernorm",
            "attn_post_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
            "attn_sinks": "self_attn.sinks",
        },
        transposed=True,
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "starcoder2": Family({"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "olmo2": Family({"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}),
    "glm4": Family(
        {
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        }
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        layer={
            **_SHORT_CONVOLUTIONS,
            "ffn_gate_inp": "feed_forward.gate",
            "exp_probs_b": "feed_forward.expert_bias",
        },
        experts="feed_forward.experts",
    ),
    "granitemoehybrid": Family(
        {
            **_MAMBA,
            "ffn_gate_inp": "block_sparse_moe.router",
            **dict.fromkeys(("ffn_down", "ffn_down_shexp"), "shared_mlp.output_linear"),
        },
        turned=True,
        experts="block_sparse_moe.experts",
        fused=dict.fromkeys((*_HALVES, *(f"{each}_shexp" for each in _HALVES)), "shared_mlp.input_linear"),
    ),
    "nemotron_h": Family(
        {
            **{leaf: name.replace("mamba.", "mixer.") for leaf, name in _MAMBA.items()},
            **{f"attn_{each}": f"mixer.{each}_proj" for each in ("q", "k", "v")},
            "attn_norm": "norm",
            "attn_output": "mixer.o_proj",
            **{f"ffn_{each}": f"mixer.{each}_proj" for each in ("up", "down")},
            **{f"ffn_{each}_shexp": f"mixer.shared_experts.{each}_proj" for each in ("up", "down")},
            "ffn_gate_inp": "mixer.gate",
            "exp_probs_b": "mixer.gate.e_score_correction_bias",
            "ffn_latent_down": "mixer.fc1_latent_proj",
            "ffn_latent_up": "mixer.fc2_latent_proj",
        },
        turned=True,
        top={"token_embd": "model.embeddings", "output_norm": "model.norm_f"},
        experts="mixer.experts",
        gated=False,
    ),
    "glm4_moe": Family({"post_attention_norm": "post_attention_layernorm", **_EXPERTS, **_SHARED, **_CORRECTED}),
}
"""By transformers' ``model_type``, as `ferrule.model.gguf.gguf_config` tells it."""

NAMELESS = frozenset({"self_attn.sinks", "gate.e_score_correction_bias", "feed_forward.expert_bias", ".dt_bias"})
"""Bare parameters, whose names end without ``.weight`` or ``.bias``."""


def family_of(model_type: str, file: str) -> Family:
    """Raises `ModelError` for a family whose GGUF files are not run here."""
    found = FAMILIES.get(model_type)
    if found is None:
        raise ModelError(
            f"{file} is a model of the family {model_type!r}, whose GGUF files are not run here; use the directory of "
            f"its safetensors. These are run: {', '.join(FAMILIES)}"
        )
    return found


FLAT = frozenset({"ssm_a", "ssm_d", "ssm_norm"})
"""Vectors that are stored with two dimensions."""
DECAYS = "ssm_a"
"""Stored as -exp of what transformers has (llama.cpp's conversion of Mamba-2)."""


def split_name(name: str) -> tuple[str, str, str]:
    """The layer's prefix (empty: none), the name within it, and ``weight`` or ``bias`` (or nothing)."""
    within = BLOCK.match(name)
    layer, rest = (f"model.layers.{int(within[1])}.", within[2]) if within else ("", name)
    leaf, dot, suffix = rest.rpartition(".")
    return (layer, leaf, suffix) if dot and suffix in ("weight", "bias") else (layer, rest, "")
