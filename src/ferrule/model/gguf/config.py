"""From a GGUF file's key-values to what ``config.json`` would say of the same model."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.model.families.shape import MAX_LAYERS
from ferrule.model.gguf.files import GgufModel
from ferrule.model.gguf.metadata import Config, Metadata
from ferrule.model.gguf.recurrent import granite_hybrid, lfm2, nemotron_h, qwen3_next
from ferrule.model.gguf.rope import rope_parameters

_MODEL_TYPES = {
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "gemma3n": "gemma3n_text",
    "deepseek2": "deepseek_v3", "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe", "gptneox": "gpt_neox",
    "minimax-m2": "minimax_m2", "seed_oss": "seed_oss", "lfm2moe": "lfm2_moe",
    "granitehybrid": "granitemoehybrid", "qwen3next": "qwen3_next", "nemotron_h_moe": "nemotron_h",
}  # fmt: skip
"""llama.cpp's names of architectures -> transformers'; others are the same."""

_FIELDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
_NUMBERS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "expert_weights_scale": "routed_scaling_factor",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_SIGMOID = 2
"""``expert_gating_func`` of DeepSeek-V3 and its kin."""


def gguf_config(model: GgufModel) -> Config:
    """The key-values as a ``config.json`` would have them. Raises `ModelError` where one cannot be, or the
    architecture is missing."""
    meta = Metadata(model)
    config: Config = {"model_type": _MODEL_TYPES.get(meta.architecture, meta.architecture)}
    for theirs, ours in _FIELDS.items():
        if (whole := meta.integer(theirs)) is not None:
            config[ours] = whole
    for theirs, ours in _NUMBERS.items():
        if (number := meta.number(theirs)) is not None:
            config[ours] = number
    if meta.one("block_count") is None or not 0 < config["num_hidden_layers"] <= MAX_LAYERS:
        raise meta.error(f"{meta.architecture}.block_count", f"is no number of layers from 1 to {MAX_LAYERS}")
    heads = config.get("num_key_value_heads")
    if isinstance(heads, list):  # per layer; a layer without attention has 0
        config["num_key_value_heads"] = max(heads, default=0)
    config["vocab_size"] = _vocabulary(meta)
    config["tie_word_embeddings"] = "output.weight" not in meta.tensors
    # What products are computed in: for packed weights, as their originals were nearly always trained.
    config["dtype"] = "float32" if model.types[:1] == ("F32",) else "bfloat16"
    config |= {f"{name}_token_id": meta.token(name) for name in ("bos", "eos")}
    config["pad_token_id"] = None
    _widths(meta, config)
    refine = _REFINE.get(meta.architecture)
    if refine is not None:
        refine(meta, config)
    config["rope_parameters"] = rope_parameters(meta, config)
    return config


def gguf_text(model: GgufModel) -> str:
    """Description of how the weights are stored: the types that take the most bytes."""
    return "GGUF " + ", ".join(model.types[:2])


def _vocabulary(meta: Metadata) -> int:
    table = meta.tensors.get("token_embd.weight")
    if table is not None and len(table.shape) == 2:
        return table.shape[0]  # tokens may be fewer
    told = meta.one("vocab_size")
    tokens = meta.model.values.get("tokenizer.ggml.tokens")
    return told if told is not None else len(tokens) if isinstance(tokens, list | range) else 0


def _widths(meta: Metadata, config: Config) -> None:
    """Those of heads; of latent attention, which has several."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if "kv_lora_rank" in config:  # key_length counts the latent (new files) or the head (old ones)
        turned = meta.one("rope.dimension_count") or 0
        width = meta.one("attention.key_length_mla") or config.get("head_dim") or 0
        config["qk_rope_head_dim"], config["qk_nope_head_dim"] = turned, width - turned
        config["v_head_dim"] = meta.one("attention.value_length_mla") or config.get("v_head_dim")
        config.pop("head_dim", None)
        config["num_key_value_heads"] = heads
        config.setdefault("q_lora_rank", None)
        return
    if isinstance(heads, int) and isinstance(hidden, int) and heads and "head_dim" not in config:
        config["head_dim"] = hidden // heads
    config.pop("v_head_dim", None)  # no family that is run has another than its keys'


def _llama(meta: Metadata, config: Config) -> None:
    if config.get("num_experts"):
        config["model_type"] = "mixtral"
        config["num_local_experts"] = config.pop("num_experts")
    elif config.get("sliding_window"):
        config["model_type"] = "mistral"
    config["attention_bias"] = "blk.0.attn_q.bias" in meta.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in meta.tensors


def _qwen(meta: Metadata, config: Config) -> None:
    config.pop("sliding_window", None)  # llama.cpp has none for them, and they are published with it switched off
    if meta.architecture in ("qwen3", "qwen3moe"):
        config["attention_bias"] = "blk.0.attn_q.bias" in meta.tensors
    if config.get("num_experts"):
        config["norm_topk_prob"] = meta.architecture == "qwen3moe"  # as llama.cpp computes them; no key tells


def _gemma(meta: Metadata, config: Config) -> None:
    """Also the scale of attention, which no key tells: the models of 27B have another one (as llama.cpp knows, too)."""
    layers, hidden, heads = (
        config.get(each, 0) for each in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    large = layers == {"gemma2": 46, "gemma3": 62}.get(meta.architecture)
    config["query_pre_attn_scalar"] = hidden // heads if large and heads else config.get("head_dim")
    config.setdefault("attn_logit_softcapping", None)
    config.setdefault("final_logit_softcapping", None)
    _windows(meta, config, {"gemma2": 2, "gemma3": 6}.get(meta.architecture, 0))


def _gpt_oss(meta: Metadata, config: Config) -> None:
    config["num_local_experts"] = config.pop("num_experts", None)
    width = config.pop("moe_intermediate_size", None)
    config["intermediate_size"] = width or config.get("intermediate_size")
    _windows(meta, config, 2)


def _windows(meta: Metadata, config: Config, every: int) -> None:
    """``layer_types``: all but every n-th layer have the sliding window, unless the file tells it layer by layer."""
    layers = config["num_hidden_layers"]
    told = meta.model.values.get(f"{meta.architecture}.attention.sliding_window_pattern")
    if isinstance(told, list) and len(told) == layers:
        windowed = [bool(each) for each in told]
    else:
        every = told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else every
        windowed = [bool((index + 1) % every) for index in range(layers)] if every else [False] * layers
    if config.get("sliding_window"):
        config["layer_types"] = ["sliding_attention" if each else "full_attention" for each in windowed]


def _deepseek(meta: Metadata, config: Config) -> None:
    sigmoid = meta.one("expert_gating_func") == _SIGMOID or "blk.0.exp_probs_b.bias" in meta.tensors
    config["model_type"] = "deepseek_v3" if sigmoid else "deepseek_v2"
    config["n_routed_experts"] = config.pop("num_experts", None)
    config["norm_topk_prob"] = bool(meta.flag("expert_weights_norm"))
    if sigmoid:
        config.setdefault("n_group", 1)
        config.setdefault("topk_group", 1)
    else:
        config["topk_method"] = "group_limited_greedy" if config.get("n_group", 1) > 1 else "greedy"


def _glm4(meta: Metadata, config: Config) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in meta.tensors


def _glm4_moe(meta: Metadata, config: Config) -> None:
    _glm4(meta, config)
    config["n_routed_experts"] = config.pop("num_experts", None)
    config["norm_topk_prob"] = bool(meta.flag("expert_weights_norm"))
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in meta.tensors
    config.setdefault("n_group", 1)
    config.setdefault("topk_group", 1)
    config["num_hidden_layers"] -= meta.one("nextn_predict_layers") or 0  # the last ones predict several tokens


def _starcoder2(meta: Metadata, config: Config) -> None:
    config["norm_epsilon"] = meta.number("attention.layer_norm_epsilon") or 1e-5
    config["use_bias"] = "blk.0.attn_q.bias" in meta.tensors


def _phi3(meta: Metadata, config: Config) -> None:
    config["original_max_position_embeddings"] = meta.one("rope.scaling.original_context_length") or config.get(
        "max_position_embeddings"
    )


_REFINE: dict[str, Callable[[Metadata, Config], None]] = {
    "llama": _llama,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen2moe": _qwen,
    "qwen3moe": _qwen,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek,
    "glm4": _glm4,
    "glm4moe": _glm4_moe,
    "starcoder2": _starcoder2,
    "phi3": _phi3,
    "lfm2": lfm2,
    "lfm2moe": lfm2,
    "granitehybrid": granite_hybrid,
    "qwen3next": qwen3_next,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
}
