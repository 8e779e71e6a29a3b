"""Differences between families of models: names of fields, biases, norms, windows, and what can be cut.

The facts are those of transformers' configurations and modules (models/*/configuration_*.py); ``cuts`` are its
``base_model_tp_plan`` and ``base_model_ep_plan`` together with what engine/architectures.py adds. That they agree is
tested in tests/engine/test_model_spec.py for every family that the engine is tested with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ferrule.model.mixer import MixerKind


@dataclass(frozen=True)
class Cuts:
    """Parts of a layer that are shared out among tensor parallel ranks.

    ``attention``: by ``heads``; or the projections' columns, ``gathered`` again before attention (which every rank
    then computes for all heads); None: not at all. ``experts``: see `ExpertsSpec.cut`. ``sinks``: the attention sinks.
    ``norms``: those of queries and keys, which have a weight per head then. ``mixer``: the columns of a recurrent
    mixer's projections, which are gathered again.
    """

    attention: Literal["heads", "gathered"] | None = "heads"
    dense: bool = True
    shared: bool = True
    experts: Literal["inside", "whole"] | None = "inside"
    sinks: bool = True
    norms: bool = False
    mixer: bool = False


@dataclass(frozen=True)
class Family:
    """Family: properties that all models of one ``model_type`` have in common.

    A bias is there always (True), never (False) or by a field of the configuration (its name; ``+name``: true where
    the field is missing). ``norms``: of the hidden size, per layer. ``query_norm``: over a ``head`` or over all heads
    (``whole``), where ``query_norm_if`` says so; ``latent`` attention brings norms of its own. ``window``: which layers
    have the sliding window: none, ``all``, from ``max_window_layers`` on (``late``), or all but every n-th (the
    number); ``chunks``: those with rotary positions see their own chunk only. ``float32_router``: what transformers
    holds of routers so, whatever it computes in. ``indexer``: chooses the tokens that are attended to.
    ``query_gate``: queries come with as many numbers that gate what attention makes of them. ``mixer``: the recurrent
    one that its layers have instead of attention, or beside it. ``shared_gate``: of shared experts.
    ``experts_inputs_first``: experts are stored in stacks of (experts, inputs, outputs). ``experts_together``: all of
    them compute all tokens, whose results are then weighed. ``tensor`` and ``stages``:
    transformers has a plan to cut it that way (without one ``cuts`` says what other engines do). ``defaults``: values
    that published configurations of the family leave out.
    """

    attention: Literal["separate", "fused", "latent", "compressed"] = "separate"
    mlp: Literal["gated", "packed", "plain"] = "gated"
    query_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    norm_bias: bool = False
    norms: int = 2
    query_norm: Literal["head", "whole"] | None = None
    query_norm_if: bool | str = True
    window: Literal["all", "late", "chunks"] | int | None = None
    router_bias: bool = False
    float32_router: Literal["bias", "all"] | None = None
    expert_bias: bool = False
    experts_inputs_first: bool = False
    experts_together: bool = False
    sinks: Literal["all", "sliding"] | None = None
    indexer: bool = False
    attention_gate: bool = False
    query_gate: bool = False
    mixer: MixerKind | None = None
    shared_gate: bool = False
    head_bias: bool | str = False
    tied: bool = False
    cuts: Cuts = field(default_factory=Cuts)
    tensor: bool = True
    stages: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def has(self, rule: bool | str, fields: Mapping[str, Any]) -> bool:
        """Whether the bias with this ``rule`` is there."""
        if isinstance(rule, bool):
            return rule
        value = fields.get(rule.removeprefix("+"))
        return rule.startswith("+") if value is None else bool(value)


BIAS = "attention_bias"
ONLY_EXPERTS = Cuts(attention=None, dense=False, shared=False)

LLAMA = Family(query_bias=BIAS, output_bias=BIAS, mlp_bias="mlp_bias")
QWEN2 = Family(query_bias=True, window="late")
QWEN3 = Family(query_bias=BIAS, output_bias=BIAS, query_norm="head", window="late")
QWEN3_VL = replace(QWEN3, window=None)
GEMMA = Family(query_bias=BIAS, output_bias=BIAS, tied=True, defaults={"head_dim": 256})
DEEPSEEK = Family(attention="latent", query_bias=BIAS, output_bias=BIAS, router_bias=True)
DSA = replace(
    DEEPSEEK,
    float32_router="all",
    indexer=True,
    defaults={
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 2048,
    },
)
QWEN3_NEXT = Family(
    query_bias=BIAS,
    output_bias=BIAS,
    query_norm="head",
    query_gate=True,
    mixer="delta",
    shared_gate=True,
    cuts=Cuts(mixer=True),
    defaults={
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "full_attention_interval": 4,
    },
)
LFM2 = Family(query_norm="head", mixer="convolution", tied=True, defaults={"conv_L_cache": 3})
MAMBA = {"mamba_d_conv": 4, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_expand": 2}
GLM4 = Family(mlp="packed", query_bias="+attention_bias", norms=4)

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "llama4_text": Family(
        query_bias=BIAS,
        output_bias=BIAS,
        window="chunks",
        experts_inputs_first=True,
        experts_together=True,
        defaults={
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "n_shared_experts": 1,
            "attention_chunk_size": 8192,
            "no_rope_layer_interval": 4,
        },
    ),
    "granite": LLAMA,
    "seed_oss": replace(LLAMA, query_bias="+attention_bias", output_bias="attention_out_bias"),
    "smollm3": replace(LLAMA, tied=True),
    "cohere": Family(
        query_bias=BIAS,
        output_bias=BIAS,
        norms=1,
        query_norm="whole",
        query_norm_if="use_qk_norm",
        tied=True,
        cuts=Cuts(norms=True),
    ),
    "mistral": Family(window="all"),
    "mixtral": Family(window="all"),
    "qwen2": QWEN2,
    "qwen2_moe": Family(query_bias="+qkv_bias", window="late", shared_gate=True, cuts=Cuts(shared=False)),
    "qwen2_5_vl_text": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_vl_text": QWEN3_VL,
    "qwen3_vl_moe_text": replace(QWEN3_VL, experts_inputs_first=True),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA, norms=4, window=2, defaults={"head_dim": 256, "sliding_window": 4096, "num_key_value_heads": 4}
    ),
    "gemma3_text": replace(
        GEMMA,
        norms=4,
        window=6,
        query_norm="head",
        defaults={
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
        },
    ),
    "gemma3n_text": replace(GEMMA, norms=4, window=5, query_norm="head", stages=False),
    "gpt_oss": Family(
        query_bias="+attention_bias",
        output_bias="+attention_bias",
        window=2,
        expert_bias=True,
        experts_inputs_first=True,
        sinks="all",
        cuts=Cuts(experts="whole"),
        defaults={"head_dim": 64},
    ),
    "deepseek_v2": replace(DEEPSEEK, router_bias=False),
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "deepseek_v32": DSA,
    "glm_moe_dsa": replace(DSA, stages=False, defaults={**DSA.defaults, "index_n_heads": 32}),
    "deepseek_v4": Family(
        attention="compressed",
        router_bias=True,
        cuts=Cuts(dense=False, shared=False),
        defaults={
            "head_dim": 512,
            "n_shared_experts": 1,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "q_lora_rank": 1024,
            "hc_mult": 4,
            "num_hash_layers": 3,
            "sliding_window": 128,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
        },
    ),
    "glm4_moe_lite": replace(
        DEEPSEEK,
        float32_router="all",
        cuts=Cuts(shared=False),
        defaults={"first_k_dense_replace": 1, "n_shared_experts": 1, "n_routed_experts": 64, "num_experts_per_tok": 4},
    ),
    "youtu": replace(DEEPSEEK, router_bias=False, tied=True),
    "minicpm3": replace(DEEPSEEK, router_bias=False, mlp_bias="mlp_bias", tied=True),
    "phi3": Family(attention="fused", mlp="packed", window="all"),
    "phimoe": Family(
        query_bias=BIAS,
        output_bias=BIAS,
        norm_bias=True,
        window="all",
        head_bias="lm_head_bias",
        cuts=ONLY_EXPERTS,
        stages=False,
    ),
    "glm": replace(GLM4, norms=2),
    "glm4": GLM4,
    "glm4_moe": Family(query_bias=BIAS, query_norm="head", query_norm_if="use_qk_norm", router_bias=True),
    "olmo2": replace(LLAMA, mlp_bias=False, query_norm="whole", cuts=Cuts(attention="gathered")),
    "olmo3": replace(LLAMA, mlp_bias=False, query_norm="whole", window=4, cuts=Cuts(attention="gathered")),
    "minimax_m2": Family(norms=2, query_norm="whole", router_bias=True, cuts=Cuts(attention="gathered")),
    "gpt_neox": Family(
        attention="fused",
        mlp="plain",
        query_bias="+attention_bias",
        output_bias="+attention_bias",
        mlp_bias=True,
        norm_bias=True,
    ),
    "starcoder2": Family(
        mlp="plain",
        query_bias="+use_bias",
        output_bias="+use_bias",
        mlp_bias="+use_bias",
        norm_bias=True,
        window="all",
        tied=True,
    ),
    "mimo_v2_flash": Family(
        query_bias=BIAS,
        window=6,
        router_bias=True,
        float32_router="all",
        sinks="sliding",
        defaults={"head_dim": 192, "v_head_dim": 128, "sliding_window": 129},
    ),
    "afmoe": Family(
        query_bias=BIAS,
        output_bias=BIAS,
        norms=4,
        query_norm="head",
        window=4,
        router_bias=True,
        float32_router="bias",
        attention_gate=True,
        cuts=ONLY_EXPERTS,
    ),
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_NEXT,
    "qwen3_5_moe_text": QWEN3_NEXT,
    "lfm2": LFM2,
    "lfm2_moe": replace(
        LFM2, router_bias=True, float32_router="bias", defaults={**LFM2.defaults, "num_dense_layers": 2}
    ),
    "kimi_linear": replace(
        DEEPSEEK,
        float32_router="all",
        mixer="kda",
        cuts=Cuts(attention=None),
        defaults={
            "first_k_dense_replace": 1,
            "num_shared_experts": 1,
            "linear_head_dim": 128,
            "linear_num_heads": 32,
            "linear_conv_kernel_dim": 4,
        },
    ),
    "granitemoehybrid": Family(
        mlp="packed",
        query_bias=BIAS,
        output_bias=BIAS,
        mixer="mamba2",
        cuts=ONLY_EXPERTS,
        defaults={**MAMBA, "shared_intermediate_size": 1024},
    ),
    "falcon_h1": Family(
        query_bias=BIAS,
        output_bias=BIAS,
        mlp_bias="mlp_bias",
        mixer="mamba2",
        tensor=False,
        stages=False,
        defaults=MAMBA,
    ),
    "nemotron_h": Family(
        mlp="plain",
        mlp_bias="mlp_bias",
        norms=1,
        router_bias=True,
        float32_router="all",
        mixer="mamba2",
        cuts=ONLY_EXPERTS,
        defaults={"head_dim": 128, "conv_kernel": 4},
    ),
    "dbrx": Family(attention="fused", cuts=Cuts(experts="whole"), tensor=False, stages=False),
}
"""By transformers' ``model_type``."""

PROGRAMS = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "phi3",
        "granite",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gpt_oss",
        "gemma2",
        "gemma3_text",
        "deepseek_v2",
        "deepseek_v3",
        "kimi_k2",
        "glm4",
        "glm4_moe",
        "starcoder2",
    }
)
"""Families whose steps the built-in engine runs as native programs (engine/rank/step/families.py)."""

SAME_CLASS = {"kimi_k2": "deepseek_v3"}
"""A ``model_type`` that transformers does not have -> that of the class which its ``auto_map`` only repeats."""

SEEING = frozenset({"gemma3", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe"})
"""Families of models that take images, whose language models are families of the table above."""

ANY = Family(tensor=False, stages=False)
"""A family not listed: like Llama, and nothing is known of how to cut it."""
