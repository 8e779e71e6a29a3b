"""Model files without weights: what they say is true, their data is a hole."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""A small mixture of experts whose first layer is dense."""

BITS = {"BF16": 16, "F32": 32, "U32": 32, "I32": 32, "U8": 8}
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def header(tensors: Tensors) -> bytes:
    """The header of a safetensors file that holds ``tensors``: name -> (dtype, shape)."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def data_bytes(tensors: Tensors) -> int:
    return sum(math.prod(shape) * BITS[dtype] // 8 for dtype, shape in tensors.values())


def write_safetensors(file: Path, tensors: Tensors) -> Path:
    start = header(tensors)
    with file.open("wb") as opened:
        opened.write(start)
        opened.truncate(len(start) + data_bytes(tensors))
    return file


def write_config(directory: Path, **changes: Any) -> Path:
    """``config.json`` with ``changes``; those that are None are left out."""
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_index(directory: Path, files: Mapping[str, str], total: object) -> None:
    index = {"metadata": {"total_size": total}, "weight_map": dict(files)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def tensors_of_config() -> dict[str, tuple[str, tuple[int, ...]]]:
    """All tensors of a model of `CONFIG` by their names in a checkpoint, in bfloat16."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (100, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (100, 64),
    }
    for layer in range(3):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.{norm}_layernorm.weight": (64,) for norm in ("input", "post_attention")}
        shapes |= {f"{name}.self_attn.{each}_proj.weight": (16, 64) for each in "kv"}
        shapes |= {f"{name}.self_attn.{each}_proj.weight": (64, 64) for each in "qo"}
        shapes |= {f"{name}.self_attn.{each}_norm.weight": (8,) for each in "qk"}
        if layer == 0:
            shapes |= mlp(f"{name}.mlp", 128)
        else:
            shapes[f"{name}.mlp.gate.weight"] = (4, 64)
            for expert in range(4):
                shapes |= mlp(f"{name}.mlp.experts.{expert}", 32)
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def mlp(name: str, width: int) -> dict[str, tuple[int, ...]]:
    wide = {f"{name}.{each}_proj.weight": (width, 64) for each in ("gate", "up")}
    return {**wide, f"{name}.down_proj.weight": (64, width)}


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value: Any) -> bytes:
    """Type and value: texts, whole numbers, and lists of them."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_text(value)
    if isinstance(value, list):
        texts = isinstance(value[0], str)
        body = b"".join(gguf_text(each) if texts else struct.pack("<I", each) for each in value)
        return struct.pack("<IIQ", 9, 8 if texts else 4, len(value)) + body
    return struct.pack("<II", 4, value)


def gguf_header(
    values: Mapping[str, Any], tensors: Mapping[str, tuple[int, tuple[int, ...], int]], version: int = 3
) -> tuple[bytes, int]:
    """``tensors``: name -> (type number, shape, bytes). The header, and how many bytes of tensors follow it."""
    text = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    text += b"".join(gguf_text(key) + gguf_value(value) for key, value in values.items())
    end = 0
    for name, (kind, shape, size) in tensors.items():
        text += gguf_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, end)
        end += aligned(size)
    return text + b"\0" * (aligned(len(text)) - len(text)), end


def aligned(size: int) -> int:
    return -(-size // 32) * 32


def write_gguf(
    file: Path, values: Mapping[str, Any], tensors: Mapping[str, tuple[int, tuple[int, ...], int]], version: int = 3
) -> Path:
    text, end = gguf_header(values, tensors, version)
    with file.open("wb") as opened:
        opened.write(text)
        opened.truncate(len(text) + end)
    return file
