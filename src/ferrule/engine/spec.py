"""Model description before any rank starts: counts and sizes for the planner, and a check that it can be run here.

Of a family that is known here ``config.json`` (or a GGUF file's keys) says it. Of others transformers has to be asked,
whose import takes seconds and 200 MiB.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ferrule.engine.source import configuration_file, count_files, describe, read_config
from ferrule.engine.weights.checkpoint import quantization_of
from ferrule.engine.weights.formats import known_methods
from ferrule.engine.weights.gguf.names import family_of
from ferrule.errors import ConfigError, ModelError
from ferrule.model import ModelSpec
from ferrule.model.families.encoders import ENCODERS, encoder_refusal
from ferrule.model.families.shape import Shape, read_shape
from ferrule.model.gguf import SUFFIX, gguf_config, read_gguf_model
from ferrule.model.headers import read_json
from ferrule.model.mtp import mtp_fields, mtp_title, of_gguf

_ALWAYS = frozenset({
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings",
})  # fmt: skip
_OF_ENCODERS = _ALWAYS - {"intermediate_size", "num_key_value_heads"}
_HEAD, _WINDOW = frozenset({"head_dim"}), frozenset({"sliding_window"})
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERTS = frozenset({"experts"})
"""One of `_COUNTS`, by which families call their number."""
_NARROW = _EXPERTS | {"moe_intermediate_size"}
_DEEPSEEK = _NARROW | {"n_shared_experts", "q_lora_rank", "v_head_dim"}
_DENSE_FIRST = frozenset({"first_k_dense_replace"})
NEEDED: dict[str, frozenset[str]] = {
    "afmoe": _NARROW | _HEAD | _WINDOW | {"num_dense_layers", "num_shared_experts"},
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK | {"mlp_layer_types", "num_key_value_heads"},
    "deepseek_v3": _DEEPSEEK | _DENSE_FIRST,
    "glm": _HEAD,
    "glm4": _HEAD,
    "glm4_moe": _NARROW | _DENSE_FIRST | {"n_shared_experts"},
    "glm4_moe_lite": _DEEPSEEK | {"mlp_layer_types"},
    "gpt_oss": _EXPERTS | _WINDOW,
    "llama4_text": _EXPERTS | _HEAD | {"layer_types", "moe_layers", "intermediate_size_mlp", "attention_chunk_size"},
    "kimi_k2": _DEEPSEEK | _DENSE_FIRST,
    "mimo_v2_flash": _NARROW | {"mlp_layer_types"},
    "minimax_m2": _EXPERTS | _HEAD,
    "mistral": _WINDOW,
    "mixtral": _EXPERTS,
    "olmo3": _WINDOW,
    "qwen2_moe": _NARROW | _WINDOW | {"layer_types", "use_sliding_window", "shared_expert_intermediate_size"},
    "qwen3": _HEAD,
    "qwen3_moe": _NARROW,
    "qwen3_vl_moe_text": _NARROW | _HEAD,
    "qwen3_vl_text": _HEAD,
    "seed_oss": _HEAD,
    "youtu": frozenset({"q_lora_rank", "v_head_dim"}),
}
"""Fields beside `_ALWAYS` for which transformers' class of a family has a default that is not the one here."""


def read_spec(directory: Path, weights: str | None = None, dtype: str = "auto") -> ModelSpec:
    """Counts and sizes for the planner. ``weights``: as in `Checkpoint`. ``dtype``: what is computed in, ``auto`` for
    what they were saved in. Checks all files on the way; raises `ModelError` where one is missing or damaged, and for a
    model that is not run here."""
    fields = _plain_fields(directory)
    if fields is None:
        return describe(directory, read_config(directory), weights, dtype)
    return count_files(directory, fields, weights, dtype)


def read_mtp_spec(directory: Path, weights: str | None = None, dtype: str = "auto") -> ModelSpec:
    """The same of the model's layer for multi-token prediction, as a model of one layer, whose family is known. Raises
    `ModelError` where the files hold none."""
    file = configuration_file(directory)
    if file.suffix == SUFFIX:
        raise ModelError(f"{directory}: {of_gguf()}")
    spec = count_files(directory, mtp_fields(read_json(file)), weights, dtype, mtp=True)
    return replace(spec, name=mtp_title(spec.name))


def _plain_fields(directory: Path) -> dict[str, Any] | None:
    """The configuration's fields, if they are enough; None where transformers has to be asked, which also says what is
    wrong with a model that is not run."""
    file = configuration_file(directory)
    fields = gguf_config(read_gguf_model(file)) if file.suffix == SUFFIX else read_json(file)
    try:
        shape = read_shape(fields, str(file))
    except ConfigError:
        return None
    if not _is_plain(shape, fields):
        return None
    if file.suffix == SUFFIX:
        family_of(shape.model_type, str(file))
    return fields


def _is_plain(shape: Shape, fields: dict[str, Any]) -> bool:
    """Whether all that transformers would say of this model is known here: nothing is refused, no default is used."""
    if shape.model_type in ENCODERS:
        plain = not quantization_of(fields) and encoder_refusal(fields.get) is None
        return shape.encoder and plain and all(fields.get(name) is not None for name in _OF_ENCODERS)
    if not shape.known or (shape.multimodal and not shape.sees) or shape.other_layers or shape.family.mixer is not None:
        return False
    if shape.family.attention == "compressed":  # transformers has several names for most of its fields
        return False
    if not (shape.family.tensor and shape.family.stages):  # transformers knows why
        return False
    quantization = quantization_of(fields)
    if quantization and quantization.get("quant_method") not in known_methods():
        return False
    if shape.sees:
        fields = {**shape.family.defaults, **fields["text_config"]}
    told = set(fields) | (_EXPERTS if any(name in fields for name in _COUNTS) else set())
    return all(fields.get(name) is not None for name in _ALWAYS) and NEEDED.get(shape.model_type, set()) <= told
