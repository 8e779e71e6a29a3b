"""Configurations of families whose layers keep a recurrent state, out of GGUF key-values."""

from __future__ import annotations

from ferrule.errors import ModelError
from ferrule.model.gguf.metadata import Config, Metadata


def lfm2(meta: Metadata, config: Config) -> None:
    """Its experts' weights always add up to 1, and are scaled by nothing."""
    config["layer_types"] = _by_heads(meta, config, "conv")
    config["conv_L_cache"] = _size(meta, "shortconv.l_cache")
    config["conv_bias"] = any(name.endswith(".shortconv.conv.bias") for name in meta.tensors)
    config["norm_eps"] = config.pop("rms_norm_eps", 1e-5)
    config["block_auto_adjust_ff_dim"] = False  # the length in the file is the adjusted one
    if config.get("num_experts"):
        config["num_dense_layers"] = config.pop("first_k_dense_replace", 0)
        config["use_expert_bias"] = any(name.endswith(".exp_probs_b.bias") for name in meta.tensors)
        config["norm_topk_prob"] = True
        config.pop("routed_scaling_factor", None)


def granite_hybrid(meta: Metadata, config: Config) -> None:
    """Without rotary embeddings where the file says that they were not trained (llama.cpp's switch)."""
    width = config.get("head_dim")
    if not isinstance(width, int) or width < 1:
        raise meta.error(f"{meta.architecture}.attention.head_count", "leaves heads without a width")
    inner, heads, hidden = (_size(meta, each) for each in ("ssm.inner_size", "ssm.time_step_rank", "embedding_length"))
    if inner % hidden:
        raise meta.error(f"{meta.architecture}.ssm.inner_size", f"is no multiple of the hidden size {hidden}")
    _divides(meta, "ssm.time_step_rank", heads, inner)
    config |= {
        "layer_types": _by_heads(meta, config, "linear_attention"),
        "mamba_expand": inner // hidden,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": _size(meta, "ssm.group_count"),
        "mamba_d_state": _size(meta, "ssm.state_size"),
        "mamba_d_conv": _size(meta, "ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in meta.tensors),
        "mamba_proj_bias": any(name.endswith(".ssm_in.bias") for name in meta.tensors),
        "attention_bias": any(name.endswith(".attn_q.bias") for name in meta.tensors),
        "position_embedding_type": None if meta.flag("rope.scaling.finetuned") is False else "rope",
        "embedding_multiplier": meta.number("embedding_scale") or 1.0,
        "residual_multiplier": meta.number("residual_scale") or 1.0,
        "logits_scaling": meta.number("logit_scale") or 1.0,
        "attention_multiplier": meta.number("attention.scale") or width**-0.5,
        "num_local_experts": config.pop("num_experts", 0),
        "shared_intermediate_size": config.pop("shared_expert_intermediate_size", config.get("intermediate_size")),
    }
    config.pop("moe_intermediate_size", None)


def qwen3_next(meta: Metadata, config: Config) -> None:
    """Sizes of its gated delta nets, by llama.cpp's names of them (``qwen3next.cpp``)."""
    layers = config["num_hidden_layers"]
    told = meta.model.values.get(f"{meta.architecture}.attention.recurrent_layers")
    if isinstance(told, list) and len(told) == layers:
        recurrent = [bool(each) for each in told]
    else:
        every = meta.one("full_attention_interval") or 4  # llama.cpp's default
        recurrent = [(index + 1) % every != 0 for index in range(layers)]
    _leave_out(meta, config)
    keys, heads, inner = (_size(meta, f"ssm.{each}") for each in ("group_count", "time_step_rank", "inner_size"))
    _divides(meta, "ssm.time_step_rank", heads, inner)
    _divides(meta, "ssm.group_count", keys, heads)
    config |= {
        "layer_types": [
            "linear_attention" if each else "full_attention" for each in recurrent[: config["num_hidden_layers"]]
        ],
        "linear_conv_kernel_dim": _size(meta, "ssm.conv_kernel"),
        "linear_key_head_dim": _size(meta, "ssm.state_size"),
        "linear_num_key_heads": keys,
        "linear_num_value_heads": heads,
        "linear_value_head_dim": inner // heads,
        "attention_bias": any(name.endswith(".attn_q.bias") for name in meta.tensors),
        "norm_topk_prob": True,  # as llama.cpp computes them; no key tells
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


_PARTS = {
    "ssm_in": "linear_attention",
    "attn_q": "full_attention",
    "ffn_gate_inp": "moe",
    "ffn_up": "mlp",
}
"""Of Nemotron-H, whose layers have one each: a tensor that tells which."""


def nemotron_h(meta: Metadata, config: Config) -> None:
    """Layers have one part each; weights of experts are by the sigmoid, as llama.cpp's ``nemotron-h.cpp`` has it."""
    _leave_out(meta, config)
    kinds = [_part(meta, index) for index in range(config["num_hidden_layers"])]
    inner, heads = _size(meta, "ssm.inner_size"), _size(meta, "ssm.time_step_rank")
    _divides(meta, "ssm.time_step_rank", heads, inner)
    names = ("ssm_conv1d", "ssm_in", "attn_q", "ffn_up")
    biased = [any(name.endswith(f".{each}.bias") for name in meta.tensors) for each in names]
    config |= dict(zip(("use_conv_bias", "use_bias", "attention_bias", "mlp_bias"), biased, strict=True))
    config |= {
        "layers_block_type": kinds,
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": _size(meta, "ssm.group_count"),
        "ssm_state_size": _size(meta, "ssm.state_size"),
        "conv_kernel": _size(meta, "ssm.conv_kernel"),
        "layer_norm_epsilon": config.pop("rms_norm_eps", 1e-5),
    }
    told = meta.integer("feed_forward_length")
    each_layer = told if isinstance(told, list) else [told] * len(kinds)
    widths = {width for width, kind in zip(each_layer, kinds, strict=False) if kind == "mlp"}
    if len(widths) > 1:
        raise meta.error(f"{meta.architecture}.feed_forward_length", "differs between dense layers")
    config["intermediate_size"] = next(iter(widths), None) or config.get("hidden_size")
    if "moe" in kinds:
        config |= {
            "n_routed_experts": meta.one("expert_count"),
            "num_experts_per_tok": meta.one("expert_used_count"),
            "moe_intermediate_size": meta.one("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": config.pop("shared_expert_intermediate_size", None),
            "moe_latent_size": meta.one("moe_latent_size"),
            "norm_topk_prob": bool(meta.flag("expert_weights_norm")),
        }
        config.setdefault("n_group", 1)
        config.setdefault("topk_group", 1)
    config.pop("num_experts", None)


def _part(meta: Metadata, index: int) -> str:
    found = next((kind for leaf, kind in _PARTS.items() if f"blk.{index}.{leaf}.weight" in meta.tensors), None)
    if found is None:
        raise ModelError(f"{meta.model.file} lacks the tensors of layer {index}; download the model again")
    return found


def _leave_out(meta: Metadata, config: Config) -> None:
    """The layers behind the decoder's, which predict several tokens."""
    config["num_hidden_layers"] -= meta.one("nextn_predict_layers") or 0
    if config["num_hidden_layers"] < 1:
        raise meta.error(f"{meta.architecture}.nextn_predict_layers", "leaves no layer")


def _by_heads(meta: Metadata, config: Config, recurrent: str) -> list[str]:
    """``layer_types``: layers without heads of keys are ``recurrent`` (llama.cpp's ``llama-model.cpp``)."""
    layers = config["num_hidden_layers"]
    told = meta.integer("attention.head_count_kv")
    heads = told if isinstance(told, list) else [told] * layers
    if len(heads) != layers:
        raise meta.error(f"{meta.architecture}.attention.head_count_kv", f"does not tell {layers} layers one by one")
    return ["full_attention" if each else recurrent for each in heads]


def _size(meta: Metadata, name: str) -> int:
    found = meta.one(name)
    if not found:
        raise meta.error(f"{meta.architecture}.{name}", "is no size")
    return found


def _divides(meta: Metadata, name: str, heads: int, inner: int) -> None:
    if inner % heads:
        raise meta.error(f"{meta.architecture}.{name}", f"does not divide {inner}")
