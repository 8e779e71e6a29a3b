"""A Llama of safetensors as a GGUF file, so that llama.cpp can be measured with the same weights. Needs ``gguf``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule.errors import ConfigError
from ferrule.model.headers import read_json

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TYPES = {"bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""GGUF's name for each of our formats; the head has 8 bits with ``int4``, as `model.on_load` says."""


def write_gguf(directory: Path, file: Path, form: str) -> None:
    """Write the Llama of ``directory`` to ``file`` in the format ``form``. Raises `ConfigError` for another family."""
    import gguf
    from safetensors import safe_open

    config = read_json(directory / "config.json")
    if config["model_type"] != "llama" or not (directory / "model.safetensors").exists():
        raise ConfigError(f"{directory}: only a Llama in one file is converted for llama.cpp")
    heads, held = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(file, "llama")
    _keys(writer, config)
    with safe_open(directory / "model.safetensors", framework="pt") as stored:

        def add(name: str, key: str, kind: str, rotated: int = 0) -> None:
            array: NDArray[Any] = stored.get_tensor(f"{key}.weight").float().numpy()
            if rotated:  # llama.cpp turns neighbouring numbers, transformers those of the two halves of a head
                array = array.reshape(rotated, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
            if kind == "F32":
                writer.add_tensor(f"{name}.weight", np.ascontiguousarray(array))
                return
            quantised = gguf.GGMLQuantizationType[kind]
            packed = gguf.quants.quantize(np.ascontiguousarray(array), quantised)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=quantised)

        kind = TYPES[form]
        add("token_embd", "model.embed_tokens", "Q8_0" if kind == "Q4_0" else kind)
        for layer in range(config["num_hidden_layers"]):
            for name, key in LAYER.items():
                rotated = {"attn_q": heads, "attn_k": held}.get(name, 0)
                form_of = "F32" if name.endswith("norm") else kind
                add(f"blk.{layer}.{name}", f"model.layers.{layer}.{key}", form_of, rotated)
        add("output_norm", "model.norm", "F32")
        add("output", "lm_head", "Q8_0" if kind == "Q4_0" else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _keys(writer: Any, config: dict[str, Any]) -> None:
    """Its shape, and a vocabulary in which each id has a text of its own."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    count = config["vocab_size"]
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters = [f"<{index}>" for index in range(count)]
    writer.add_token_list(letters)
    writer.add_token_types([1] * count)
    writer.add_token_merges([f"{letters[3]} {letters[4]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
