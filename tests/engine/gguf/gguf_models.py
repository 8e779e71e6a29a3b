"""Tiny GGUF models, written by the gguf library from models of transformers, as llama.cpp's converter would."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter
from tiny_models import make
from transformers import AutoModelForCausalLM

from ferrule.model.gguf import SIZES

ARCHITECTURES = {
    "mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe": "glm4moe",
    "lfm2_moe": "lfm2moe", "granitemoehybrid": "granitehybrid", "qwen3_next": "qwen3next",
}  # fmt: skip
_SHARED_WIDTHS = ("shared_expert", "shared", "moe_shared_expert")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
          "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "F16": (0,)}  # fmt: skip
"""Offsets of a block's numbers of 16 bits."""


def random_blocks(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Bytes of a tensor of ``shape``: anything but scales that are no numbers."""
    numbers, size = SIZES[kind]
    draw = np.random.default_rng(seed)
    if kind in ("F32", "BF16"):
        plain = draw.standard_normal(shape, np.float32)
        return np.asarray(gguf.quants.quantize(plain, GGMLQuantizationType[kind])).view(np.uint8)
    blocks = draw.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size), np.uint8)
    for at in HALVES.get(kind, ()):
        scales = draw.standard_normal(blocks.shape[:-1]).astype("<f2")
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] %= 250
    return blocks.reshape(*shape[:-1], -1)


def write(name: str, directory: Path, kind: str = "F32", *, split: bool = False, **changes: Any) -> tuple[Path, Any]:
    """A random model of family ``name`` as ``model.gguf`` in ``directory``, its matrices in ``kind``; returns that file
    and transformers' model, with just the numbers that the file holds. ``split``: in several files."""
    plain = make(name, directory.with_name(f"{directory.name}-plain"), **changes)
    model = AutoModelForCausalLM.from_pretrained(plain).float().eval()
    _round(model, kind)
    directory.mkdir(exist_ok=True)
    architecture = ARCHITECTURES.get(name, name)
    if name == "nemotron_h" and "moe" in model.config.layers_block_type:
        architecture = "nemotron_h_moe"
    file = directory / "model.gguf"
    writer = GGUFWriter(file, architecture, split_max_tensors=8 if split else 0)
    keys(writer, architecture, model.config)
    vocabulary(writer, model.config.vocab_size)
    for key, array in tensors(architecture, model).items():
        held = kind if _packs(key, array, kind) else "F32"
        data = gguf.quants.quantize(array, GGMLQuantizationType[held])
        writer.add_tensor(key, data, raw_dtype=GGMLQuantizationType[held])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (sorted(directory.glob("*.gguf"))[0] if split else file), model


def _packs(name: str, array: np.ndarray[Any, Any], kind: str) -> bool:
    """Whether a tensor is written as ``kind``: matrices whose rows divide into its blocks."""
    plain = "bias" in name or "sinks" in name or "norm" in name or array.ndim < 2
    return not plain and array.shape[-1] % gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] == 0


def _round(model: Any, kind: str) -> None:
    """Give the matrices of ``model`` the numbers that ``kind`` holds; rows may then be written in any order."""
    transposed = model.config.model_type == "gpt_oss"
    for key, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        turned = transposed and ".experts." in key and array.ndim == 3
        array = array.transpose(0, 2, 1) if turned else array
        if _packs(key, array, kind) and kind != "F32":
            packed = gguf.quants.quantize(np.ascontiguousarray(array), GGMLQuantizationType[kind])
            array = gguf.quants.dequantize(packed, GGMLQuantizationType[kind])
            parameter.data = torch.from_numpy(array.transpose(0, 2, 1).copy() if turned else array)


def keys(writer: GGUFWriter, architecture: str, config: Any) -> None:
    """The key-values of the architecture's shape."""
    told = config.to_dict()
    if "layers_block_type" in told:
        _nemotron_h(writer, told)
    rope = told["rope_parameters"]
    rope = rope.get("full_attention", rope)
    width = told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"]
    experts = next((told[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if told.get(key)), 0)
    writer.add_block_count(told["num_hidden_layers"])
    writer.add_embedding_length(told["hidden_size"])
    writer.add_feed_forward_length(told["intermediate_size"])
    writer.add_context_length(told["max_position_embeddings"])
    writer.add_head_count(told["num_attention_heads"])
    heads = 1 if told.get("kv_lora_rank") else told["num_key_value_heads"]
    if "conv_L_cache" in told:  # llama.cpp's conversion of LFM2: layers of convolutions have no heads
        heads = [heads if each == "full_attention" else 0 for each in told["layer_types"]]
        writer.add_shortconv_l_cache(told["conv_L_cache"])
    if "layers_block_type" in told:
        heads = [heads if each == "full_attention" else 0 for each in told["layers_block_type"]]
    if "mamba_d_state" in told:
        heads = [heads if each == "full_attention" else 0 for each in told["layer_types"]]
        _granite_hybrid(writer, told)
    if "linear_num_key_heads" in told:
        _delta(writer, told)
    writer.add_head_count_kv(heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1.0)))
    if "norm_epsilon" in told:
        writer.add_layer_norm_eps(told["norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(told.get("rms_norm_eps") or told["norm_eps"])
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(told["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(told.get("moe_intermediate_size") or told["intermediate_size"])
    shared = next(
        (told[f"{each}_intermediate_size"] for each in _SHARED_WIDTHS if told.get(f"{each}_intermediate_size")), None
    )
    if shared:
        writer.add_expert_shared_feed_forward_length(shared)
    if told.get("sliding_window") and architecture not in ("qwen2", "qwen3", "qwen2moe", "qwen3moe"):
        writer.add_sliding_window(told["sliding_window"])
        if architecture in ("gemma2", "gemma3", "gpt-oss"):
            writer.add_sliding_window_pattern([each == "sliding_attention" for each in told["layer_types"]])
    for name, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("first_k_dense_replace", writer.add_leading_dense_block_count),
        ("num_dense_layers", writer.add_leading_dense_block_count),
        ("routed_scaling_factor", writer.add_expert_weights_scale),
        ("n_shared_experts", writer.add_expert_shared_count),
        ("n_group", writer.add_expert_group_count),
        ("topk_group", writer.add_expert_group_used_count),
    ):
        if told.get(name) is not None:
            add(told[name])
    if told.get("n_routed_experts"):
        writer.add_expert_weights_norm(told["norm_topk_prob"])
        if told["model_type"] != "deepseek_v2":
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if told.get("kv_lora_rank"):
        if told.get("q_lora_rank"):
            writer.add_q_lora_rank(told["q_lora_rank"])
        writer.add_kv_lora_rank(told["kv_lora_rank"])
        writer.add_key_length(told["kv_lora_rank"] + told["qk_rope_head_dim"])
        writer.add_value_length(told["kv_lora_rank"])
        writer.add_key_length_mla(told["qk_nope_head_dim"] + told["qk_rope_head_dim"])
        writer.add_value_length_mla(told["v_head_dim"])
    else:
        writer.add_key_length(width)
        writer.add_value_length(width)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _granite_hybrid(writer: GGUFWriter, told: dict[str, Any]) -> None:
    """Sizes of the Mamba-2 layers, and Granite's scales: llama.cpp's conversion/granite.py."""
    writer.add_ssm_conv_kernel(told["mamba_d_conv"])
    writer.add_ssm_state_size(told["mamba_d_state"])
    writer.add_ssm_group_count(told["mamba_n_groups"])
    writer.add_ssm_inner_size(told["mamba_expand"] * told["hidden_size"])
    writer.add_ssm_time_step_rank(told["mamba_n_heads"])
    writer.add_attention_scale(told["attention_multiplier"])
    writer.add_embedding_scale(told["embedding_multiplier"])
    writer.add_residual_scale(told["residual_multiplier"])
    writer.add_logit_scale(told["logits_scaling"])
    writer.add_rope_scaling_finetuned(told["position_embedding_type"] == "rope")


def _nemotron_h(writer: GGUFWriter, told: dict[str, Any]) -> None:
    """Sizes of the Mamba-2 layers: llama.cpp's conversion/nemotron.py. Makes ``told`` what `keys` expects."""
    kinds = told["layers_block_type"]
    writer.add_ssm_conv_kernel(told["conv_kernel"])
    writer.add_ssm_state_size(told["ssm_state_size"])
    writer.add_ssm_group_count(told["n_groups"])
    writer.add_ssm_inner_size(told["mamba_num_heads"] * told["mamba_head_dim"])
    writer.add_ssm_time_step_rank(told["mamba_num_heads"])
    experts = "moe" in kinds
    if told["moe_latent_size"] and experts:
        writer.add_moe_latent_size(told["moe_latent_size"])
    width = told["moe_intermediate_size"] if experts else told["intermediate_size"]
    told["intermediate_size"] = [width if each in ("moe", "mlp") else 0 for each in kinds]
    told |= {"num_hidden_layers": len(kinds), "rms_norm_eps": told["layer_norm_epsilon"], "sliding_window": None}
    told["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "default"}
    if not experts:
        told |= {"n_routed_experts": 0, "moe_shared_expert_intermediate_size": 0, "n_shared_experts": None}


def _delta(writer: GGUFWriter, told: dict[str, Any]) -> None:
    """Sizes of the gated delta nets: llama.cpp's conversion/qwen.py."""
    writer.add_ssm_conv_kernel(told["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(told["linear_key_head_dim"])
    writer.add_ssm_group_count(told["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(told["linear_num_value_heads"])
    writer.add_ssm_inner_size(told["linear_value_head_dim"] * told["linear_num_value_heads"])
    recurrent = [each == "linear_attention" for each in told["layer_types"]]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    writer.add_full_attention_interval(4)


def vocabulary(writer: GGUFWriter, size: int) -> None:
    """A byte-level vocabulary of some tokens, a merge or two and special ones."""
    tokens = ["<unk>", "<s>", "</s>", *(chr(33 + number) for number in range(94)), "Ġ"]
    tokens += ["".join(pair) for pair in MERGES]
    special = 3
    types = [3] * special + [1] * (len(tokens) - special) + [5] * (size - len(tokens))
    tokens += [f"<unused{number}>" for number in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}")


def tensors(architecture: str, model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """By GGUF's names, which the gguf library tells."""
    config = model.config
    wanted = next(key for key, value in MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(MODEL_ARCH(wanted), config.num_hidden_layers)
    found = _rope_tables(config)
    state: Mapping[str, Any] = model.state_dict()
    for key, tensor in state.items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for name, array in _pieces(architecture, config, key, tensor.numpy()):
            stem, dot, suffix = name.rpartition(".")
            bare = not dot or suffix not in ("weight", "bias")
            ours = names.get_name(name if bare else stem)
            assert ours is not None, f"{name} is not known to the gguf library"
            state = ours.endswith((".ssm_a", ".ssm_d"))  # which have no suffix
            found[ours if state else f"{ours}.{'weight' if bare else suffix}"] = np.ascontiguousarray(array)
    return found


def _rope_tables(config: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Rotary factors, where a file holds them as tensors: of Llama 3 (Meta's reference code) and of LongRoPE."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        factors = {each: np.array(rope[f"{each}_factor"], np.float32) for each in ("long", "short")}
        return {f"rope_factors_{each}.weight": values for each, values in factors.items()}
    if rope.get("rope_type") != "llama3":
        return {}
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((rope["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)}


def _granite_pieces(config: Any, key: str, array: np.ndarray[Any, Any]) -> list[tuple[str, Any]]:
    """llama.cpp's conversion/granite.py and conversion/mamba.py; nothing where a parameter is as it is."""
    mamba = _mamba_pieces(key, array, config.mamba_n_groups)
    if mamba:
        return mamba
    if "shared_mlp" in key:
        stem = key.partition("shared_mlp")[0] + ("mlp.shared_expert." if config.num_local_experts else "mlp.")
        if "output_linear" in key:
            return [(f"{stem}down_proj.weight", array)]
        return [
            (f"{stem}{part}_proj.weight", each) for part, each in zip(("gate", "up"), np.split(array, 2), strict=True)
        ]
    if key.endswith("block_sparse_moe.experts.gate_up_proj"):
        stem = key.replace("block_sparse_moe", "mlp").removesuffix("gate_up_proj")
        return [
            (f"{stem}{part}_proj.weight", each)
            for part, each in zip(("gate", "up"), np.split(array, 2, 1), strict=True)
        ]
    if key.endswith("block_sparse_moe.experts.down_proj"):
        return [(key.replace("block_sparse_moe", "mlp") + ".weight", array)]
    if key.endswith("block_sparse_moe.router.weight"):
        return [(key.replace("router", "router.layer"), array)]
    return []


def _delta_pieces(config: Any, key: str, array: np.ndarray[Any, Any]) -> list[tuple[str, Any]]:
    """llama.cpp's conversion/qwen.py, of Qwen3-Next; nothing where a parameter is as it is."""
    match key.rpartition("linear_attn.")[2] if ".linear_attn." in key else "":
        case "A_log":
            return [(key, -np.exp(array))]
        case "dt_bias":
            return [(key.replace("dt_bias", "dt_proj.bias"), array)]
        case "conv1d.weight":
            return [(key, array[:, 0])]
        case "norm.weight":
            return [(key, array)]
        case "in_proj_qkvz.weight":
            width = config.linear_key_head_dim
            by_head = array.reshape(config.linear_num_key_heads, -1, array.shape[1])
            values = (by_head.shape[1] - 2 * width) // 2
            q, k, v, z = np.split(by_head, (width, 2 * width, 2 * width + values), 1)
            qkv = np.concatenate([each.reshape(-1, array.shape[1]) for each in (q, k, v)])
            stem = key.removesuffix("qkvz.weight")
            return [(f"{stem}qkv.weight", qkv), (f"{stem}z.weight", z.reshape(-1, array.shape[1]))]
    return [(key, array + 1)] if key.endswith("norm.weight") else []


def _nemotron_pieces(config: Any, key: str, array: np.ndarray[Any, Any]) -> list[tuple[str, Any]]:
    """llama.cpp's conversion/nemotron.py."""
    if "e_score_correction_bias" in key:
        return [(key.replace("e_score_correction_bias", "e_score_correction.bias"), array)]
    if ".mixer.experts." in key:
        return [(key.replace("backbone", "model").replace("mixer", "mlp") + ".weight", array)]
    found = _mamba_pieces(key.replace(".mixer.", ".mamba."), array, config.n_groups)
    return [(name.replace(".mamba.", ".mixer."), each) for name, each in found] or [(key, array)]


def _mamba_pieces(key: str, array: np.ndarray[Any, Any], groups: int) -> list[tuple[str, Any]]:
    """llama.cpp's conversion/mamba.py, of Mamba-2."""
    match key.rpartition("mamba.")[2] if ".mamba." in key else "":
        case "A_log":
            return [(key, -np.exp(array)[:, None])]
        case "D":
            return [(key, array[:, None])]
        case "dt_bias":
            return [(key.replace("dt_bias", "dt_proj.bias"), array)]
        case "conv1d.weight":
            return [(key, array[:, 0])]
        case "norm.weight":
            return [(key, array.reshape(groups, -1))]
    return []


def _pieces(architecture: str, config: Any, key: str, array: np.ndarray[Any, Any]) -> list[tuple[str, Any]]:
    """Tensors that llama.cpp's converter makes of a parameter: name in a checkpoint, numbers."""
    if architecture.startswith(("llama", "granitehybrid", "nemotron_h")) and re.search(r"\.[qk]_proj\.", key):
        heads = config.num_attention_heads if ".q_proj." in key else config.num_key_value_heads
        halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
        key = key.replace("model.", "backbone.") if architecture.startswith("nemotron_h") else key
        return [(key, halves.swapaxes(1, 2).reshape(array.shape))]
    if architecture.startswith("gemma") and key.endswith("norm.weight"):
        return [(key, array + 1)]
    if architecture == "deepseek2" and ".kv_b_proj." in key:
        width = config.qk_nope_head_dim
        heads = array.reshape(config.num_attention_heads, width + config.v_head_dim, -1)
        return [
            (key.replace("kv_b_proj", "k_b_proj"), heads[:, :width].transpose(0, 2, 1)),
            (key.replace("kv_b_proj", "v_b_proj"), heads[:, width:]),
        ]
    if architecture.startswith("lfm2"):  # llama.cpp's conversion/lfm2.py
        if ".conv.conv." in key:
            return [(key, array[:, 0])]
        if key.endswith("expert_bias"):
            return [(f"{key}.bias", array)]
        if key.endswith("experts.gate_up_proj"):
            stem = key.removeprefix("model.").removesuffix("gate_up_proj")
            return [
                (f"{stem}{part}.weight", each) for part, each in zip(("w1", "w3"), np.split(array, 2, 1), strict=True)
            ]
        if key.endswith("experts.down_proj"):
            return [(f"{key.removeprefix('model.').removesuffix('down_proj')}w2.weight", array)]
    if architecture.startswith("nemotron_h"):
        return _nemotron_pieces(config, key.replace("model.", "backbone."), array)
    if architecture == "qwen3next" and (found := _delta_pieces(config, key, array)):
        return found
    if architecture == "granitehybrid" and (found := _granite_pieces(config, key, array)):
        return found
    if "e_score_correction_bias" in key:
        return [(key.replace("e_score_correction_bias", "e_score_correction.bias"), array)]
    if "shared_expert_gate" in key:
        return [(key, array[0])]
    if ".experts." not in key:
        return [(key, array)]
    suffix = "bias" if key.endswith("_bias") else "weight"
    stem = key.removesuffix("_bias")
    if architecture == "gpt-oss":
        array = array if suffix == "bias" else array.transpose(0, 2, 1)
        if "gate_up_proj" not in key:
            return [(f"{stem}.{suffix}", array)]
        parts = array[:, 0::2], array[:, 1::2]
    elif "gate_up_proj" not in key:
        return [(f"{stem}.{suffix}", array)]
    else:
        parts = np.split(array, 2, axis=1)
    return [
        (f"{stem.replace('gate_up', part)}.{suffix}", each) for part, each in zip(("gate", "up"), parts, strict=True)
    ]
