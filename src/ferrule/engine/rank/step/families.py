"""Layer properties of model families that their modules' attributes do not tell, by the class of the layer.

A family is here when a step program gives the logits of transformers' modules for it (tests/engine/rank/test_step.py).
All others run through those modules.
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "GptOssActivation": "gpt_oss",
    "ReLU": "relu",
}
"""By the name of the module's class."""
STATIC_ROTARY = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
"""Kinds of rotary positions whose frequencies do not depend on the sequence."""
SCORING = {
    "MixtralTopKRouter": "softmax",
    "Qwen3MoeTopKRouter": "softmax",
    "GptOssTopKRouter": "softmax_of_chosen",
    "DeepseekV2TopkRouter": "softmax",
    "DeepseekV3TopkRouter": "sigmoid",
    "Glm4MoeTopkRouter": "sigmoid",
}
"""Scoring function that makes a router's logits weights, by its class."""


@dataclass(frozen=True)
class Family:
    """``attention_norm``, ``mlp_norm``: before these blocks. ``attention_after``, ``mlp_after``: of their results,
    before they are added; empty where there is none. ``added``: what norms add to their weights. ``window``: that
    layers have the configuration's sliding window, though their modules do not hold it. ``interleaved``: rotary
    positions turn numbers 2 i and 2 i + 1."""

    attention_norm: str = "input_layernorm"
    attention_after: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_after: str = ""
    added: float = 0.0
    window: bool = False
    interleaved: bool = False


_GEMMA = Family(
    attention_after="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_after="post_feedforward_layernorm",
    added=1.0,
)

FAMILIES: dict[str, Family] = {
    "LlamaDecoderLayer": Family(),
    "MistralDecoderLayer": Family(window=True),
    "MixtralDecoderLayer": Family(window=True),
    "Phi3DecoderLayer": Family(window=True),
    "Qwen2DecoderLayer": Family(),
    "Qwen3DecoderLayer": Family(),
    "Qwen3MoeDecoderLayer": Family(),
    "GraniteDecoderLayer": Family(),
    "GptOssDecoderLayer": Family(),
    "Gemma2DecoderLayer": _GEMMA,
    "Gemma3DecoderLayer": _GEMMA,
    "DeepseekV2DecoderLayer": Family(interleaved=True),
    "DeepseekV3DecoderLayer": Family(),
    "Glm4DecoderLayer": Family(
        attention_after="post_self_attn_layernorm", mlp_after="post_mlp_layernorm", interleaved=True
    ),
    "Glm4MoeDecoderLayer": Family(),
    "Starcoder2DecoderLayer": Family(window=True),
}
