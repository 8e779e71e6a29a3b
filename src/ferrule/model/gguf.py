"""The header of a GGUF file: its key-values and its tensors' names, types and shapes; no tensor data is read.

Format: the GGUF specification, versions 2 and 3 (github.com/ggml-org/ggml, docs/gguf.md). Parsed here and not by the
``gguf`` library, whose reader maps the whole file, makes an array of every token of the vocabulary, and trusts every
count; here each is checked against what is left of the file.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ferrule.errors import ModelError
from ferrule.model.count import Counts

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
"""Tensor type -> name, numbers per block, bytes per block (ggml.h and ggml-common.h)."""

_MAX_TEXT = 1 << 24
_MAX_TENSORS = 1 << 20
_KEPT = 4096
"""Longer arrays (the vocabulary) are passed over; their length is kept."""


@dataclass(frozen=True)
class Gguf:
    """``tensors``: name, parameters and bytes of each. ``types``: the names of their types, most bytes first."""

    values: dict[str, Any]
    tensors: tuple[Counts, ...]
    types: tuple[str, ...]


class _Reader:
    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self.file, self.name, self.size = file, name, size

    def bytes(self, count: int, what: str) -> bytes:
        if count > self.size - self.file.tell():
            raise self.damaged(f"{what} is said to have {count:,} bytes, more than the file has left")
        return self.file.read(count)

    def skip(self, count: int, what: str) -> None:
        if count > self.size - self.file.tell():
            raise self.damaged(f"{what} is said to have {count:,} bytes, more than the file has left")
        self.file.seek(count, 1)

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form), what))[0]

    def text(self, what: str) -> str:
        length = self.number("<Q", what)
        if length > _MAX_TEXT:
            raise self.damaged(f"{what} is said to have {length:,} bytes")
        return self.bytes(length, what).decode("utf-8", "replace")

    def value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _SCALARS:
            raise self.damaged(f"{what} has the type {kind}, which is not known")
        return self.number(_SCALARS[kind], what)

    def array(self, what: str) -> Any:
        """A list, or for a long one a range of its length."""
        kind, length = self.number("<I", what), self.number("<Q", what)
        least = 8 if kind == _STRING else struct.calcsize(_SCALARS.get(kind, "<I"))
        if kind != _STRING and kind not in _SCALARS:
            raise self.damaged(f"{what} is an array of the type {kind}, which is not known")
        if length > (self.size - self.file.tell()) // least:
            raise self.damaged(f"{what} is said to have {length:,} entries, more than the file has left")
        if length <= _KEPT:
            return [self.value(kind, what) for _ in range(length)]
        if kind != _STRING:
            self.skip(length * least, what)
            return range(length)
        for _ in range(length):
            self.skip(self.number("<Q", what), what)
        return range(length)

    def damaged(self, why: str) -> ModelError:
        return ModelError(f"{self.name} is damaged or no GGUF file: {why}; download it again")


def read_gguf(file: Path) -> Gguf:
    """Raises `ModelError` where ``file`` cannot be read or says what cannot be."""
    try:
        with file.open("rb") as opened:
            return _read(_Reader(opened, str(file), file.stat().st_size))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None


def _read(reader: _Reader) -> Gguf:
    if reader.bytes(4, "the magic number") != b"GGUF":
        raise reader.damaged("it does not begin with GGUF")
    version = reader.number("<I", "the version")
    if version not in (2, 3):
        raise reader.damaged(f"its version is {version}, not 2 or 3 (or it is of a big-endian machine)")
    tensors, pairs = reader.number("<Q", "the tensor count"), reader.number("<Q", "the key count")
    if max(tensors, pairs) > _MAX_TENSORS:
        raise reader.damaged(f"it is said to hold {tensors:,} tensors and {pairs:,} keys")
    values: dict[str, Any] = {}
    for number in range(pairs):
        key = reader.text(f"the name of key {number}")
        values[key] = reader.value(reader.number("<I", key), key)
    found, by_type = [], dict[str, int]()
    for number in range(tensors):
        name = reader.text(f"the name of tensor {number}")
        dimensions = reader.number("<I", name)
        if dimensions > 8:
            raise reader.damaged(f"{name} is said to have {dimensions} dimensions")
        shape = [reader.number("<Q", name) for _ in range(dimensions)]
        kind, offset = reader.number("<I", name), reader.number("<Q", name)
        if kind not in _BLOCKS:
            raise reader.damaged(f"{name} has the type {kind}, which is not known")
        type_name, numbers, block = _BLOCKS[kind]
        elements = math.prod(shape)
        size = -(-elements // numbers) * block
        if offset + size > reader.size:
            raise reader.damaged(f"{name} of shape {shape} ends beyond the file's {reader.size:,} bytes")
        found.append(Counts(name, elements, size))
        by_type[type_name] = by_type.get(type_name, 0) + size
    return Gguf(values, tuple(found), tuple(sorted(by_type, key=lambda each: -by_type[each])))


_MODEL_TYPES = {
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "gemma3n": "gemma3n_text",
    "deepseek2": "deepseek_v3", "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe", "gptneox": "gpt_neox",
    "minimax-m2": "minimax_m2", "seed_oss": "seed_oss",
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
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
}


def gguf_config(gguf: Gguf, file: str) -> dict[str, Any]:
    """The key-values as a ``config.json`` would have them. Raises `ModelError` where the architecture is missing."""
    architecture = gguf.values.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{file} lacks general.architecture; is it a language model?")
    config: dict[str, Any] = {"model_type": _MODEL_TYPES.get(architecture, architecture)}
    for theirs, ours in _FIELDS.items():
        value = gguf.values.get(f"{architecture}.{theirs}")
        if value is not None:
            config[ours] = value
    heads = config.get("num_key_value_heads")
    if isinstance(heads, list):  # per layer; a layer without attention has 0
        config["num_key_value_heads"] = max(heads, default=0)
    vocabulary = gguf.values.get(f"{architecture}.vocab_size")
    tokens = gguf.values.get("tokenizer.ggml.tokens")
    config["vocab_size"] = vocabulary if vocabulary is not None else len(tokens or ())
    if "kv_lora_rank" in config:  # key_length counts the latent (new files) or the head (old ones)
        width = gguf.values.get(f"{architecture}.attention.key_length_mla", config.get("head_dim"))
        config["qk_nope_head_dim"] = (width or 0) - config.get("qk_rope_head_dim", 0)
        config["v_head_dim"] = gguf.values.get(f"{architecture}.attention.value_length_mla", config.get("v_head_dim"))
        config.pop("head_dim", None)
    else:
        config.pop("qk_rope_head_dim", None)
    config["tie_word_embeddings"] = not any(each.name == "output.weight" for each in gguf.tensors)
    return config
