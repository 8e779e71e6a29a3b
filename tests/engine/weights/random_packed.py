"""Models of any size with random packed weights, written tensor by tensor. Nothing is quantised; what they say is
nonsense.

``python random_packed.py DIRECTORY [FORMAT]`` writes one of the shape of Llama 3 8B.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf_models import keys, random_blocks, vocabulary
from transformers import AutoConfig, AutoModelForCausalLM

from ferrule.bench.random_model import save_tokenizer
from ferrule.engine.weights.formats.blocks import FLOAT8
from ferrule.engine.weights.groups import NF4
from ferrule.model.headers import DTYPE_BITS

Part = tuple[str, tuple[int, ...], bytes | None]
"""Dtype, shape, and the bytes that it has again and again; None: random ones."""
Parts = Callable[[int, int], Mapping[str, Part]]
"""Tensors stored of a (rows, columns) matrix, by the name within its module."""

LLAMA_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
SMALL = {"BF16": b"\x00\x3c", "F16": b"\x00\x20", "F32": np.float32(1 / 128).tobytes(), "F8_E4M3": b"\x08"}
"""The same small scale everywhere, about 2 to the power of -7."""


def _scale(dtype: str, *shape: int) -> Part:
    return dtype, shape, SMALL[dtype]


def _gptq(rows: int, columns: int) -> dict[str, Part]:
    owners = (np.arange(columns, dtype=np.int32) // 128).tobytes()
    return {
        "qweight": ("I32", (columns // 8, rows), None),
        "qzeros": ("I32", (columns // 128, rows // 8), None),
        "scales": _scale("F16", columns // 128, rows),
        "g_idx": ("I32", (columns,), owners),
    }


def _awq(rows: int, columns: int) -> dict[str, Part]:
    return {
        "qweight": ("I32", (columns, rows // 8), None),
        "qzeros": ("I32", (columns // 128, rows // 8), None),
        "scales": _scale("F16", columns // 128, rows),
    }


def _mlx(rows: int, columns: int) -> dict[str, Part]:
    scale = _scale("BF16", rows, columns // 64)
    return {"weight": ("U32", (rows, columns // 8), None), "scales": scale, "biases": scale}


def _int4(rows: int, columns: int) -> dict[str, Part]:
    return {
        "weight_packed": ("I32", (rows, columns // 8), None),
        "weight_scale": _scale("BF16", rows, columns // 128),
        "weight_shape": ("I64", (2,), np.array([rows, columns]).tobytes()),
    }


def _bytes(dtype: str) -> Parts:
    return lambda rows, columns: {"weight": (dtype, (rows, columns), None), "weight_scale": _scale("BF16", rows, 1)}


def _nvfp4(rows: int, columns: int) -> dict[str, Part]:
    return {
        "weight_packed": ("U8", (rows, columns // 2), None),
        "weight_scale": _scale("F8_E4M3", rows, columns // 16),
        "weight_global_scale": ("F32", (1,), np.float32(1).tobytes()),
    }


def _fp8(rows: int, columns: int) -> dict[str, Part]:
    blocks = -(-rows // 128), -(-columns // 128)
    return {"weight": ("F8_E4M3", (rows, columns), None), "weight_scale_inv": _scale("F32", *blocks)}


def _nf4(rows: int, columns: int) -> dict[str, Part]:
    numbers = rows * columns
    told = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [rows, columns]}
    state = json.dumps(told).encode()
    return {
        "weight": ("U8", (numbers // 2, 1), None),
        "weight.absmax": _scale("F32", numbers // 64),
        "weight.quant_map": ("F32", (16,), np.array(NF4, np.float32).tobytes()),
        "weight.quant_state.bitsandbytes__nf4": ("U8", (len(state),), state),
    }


def _int8(rows: int, columns: int) -> dict[str, Part]:
    return {"weight": ("I8", (rows, columns), None), "SCB": _scale("F32", rows)}


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "type": "int", **weights}}
    method = {"quant_method": "compressed-tensors", "format": form}
    return {**method, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_BNB = {"quant_method": "bitsandbytes"}
FORMATS: dict[str, tuple[dict[str, Any], Parts]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False}, _gptq),
    "awq": (_AWQ, _awq),
    "mlx": ({"quant_method": "mlx", "bits": 4, "group_size": 64}, _mlx),
    "int4": (_compressed("pack-quantized", num_bits=4, strategy="group", group_size=128), _int4),
    "int8": (_compressed("int-quantized", num_bits=8, strategy="channel"), _bytes("I8")),
    "fp8": (_compressed("float-quantized", num_bits=8, type="float", strategy="channel"), _bytes("F8_E4M3")),
    "nvfp4": (_compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16), _nvfp4),
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, _fp8),
    "nf4": ({**_BNB, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, _nf4),
    "bnb int8": ({**_BNB, "load_in_8bit": True}, _int8),
}
PLAIN = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def write_random(directory: Path, form: str, family: str = "llama", **sizes: Any) -> Path:
    """A model of ``family`` with all products of its layers in ``form``: of `FORMATS`, ``mxfp4`` (gpt-oss's experts),
    or plain numbers of `PLAIN`. It has a tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    dtype = form if form in PLAIN else "bfloat16"
    config = AutoConfig.for_model(family, **sizes, dtype=dtype, tie_word_embeddings=False)
    with torch.device("meta"):
        shapes = {
            name: tuple(each.shape) for name, each in AutoModelForCausalLM.from_config(config).state_dict().items()
        }
    settings, packed = FORMATS.get(form, ({}, None))
    if form == "mxfp4":
        settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    parts: dict[str, Part] = {}
    for name, shape in shapes.items():
        if form == "mxfp4" and len(shape) == 3:
            experts, inputs, outputs = shape
            parts[f"{name}_blocks"] = ("U8", (experts, outputs, inputs // 32, 16), None)
            parts[f"{name}_scales"] = ("U8", (experts, outputs, inputs // 32), b"\x76")
        elif packed is not None and len(shape) == 2 and ".layers." in name:
            module = name.removesuffix(".weight")
            parts |= {f"{module}.{leaf}": part for leaf, part in packed(*shape).items()}
        else:
            parts[name] = _scale(PLAIN[dtype], *shape)
    told = config.to_dict() | ({"quantization_config": settings} if settings else {})
    (directory / "config.json").write_text(json.dumps(told))
    save_tokenizer(directory, config.vocab_size)
    _save(directory / "model.safetensors", parts)
    return directory


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {name: tuple(each.shape) for name, each in model.state_dict().items()}


def write_random_gguf(file: Path, kind: str, **sizes: Any) -> Path:
    """A Llama with all matrices in ggml's type ``kind``."""
    config = AutoConfig.for_model("llama", **sizes, tie_word_embeddings=False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    writer = gguf.GGUFWriter(file, "llama")
    keys(writer, "llama", config)
    vocabulary(writer, config.vocab_size)
    for name, shape in _shapes(config).items():
        held = kind if len(shape) == 2 else "F32"
        own = names.get_name(name.removesuffix(".weight"))
        blocks = random_blocks(held, shape)
        writer.add_tensor(f"{own}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[held])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _save(file: Path, parts: Mapping[str, Part]) -> None:
    header, end = {}, 0
    for name, (dtype, shape, _) in parts.items():
        size = int(np.prod(shape)) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + size)}
        end += size
    text = json.dumps(header).encode()
    chunk = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    below = chunk % 120  # no code of 8 bits that is no number
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, _, given) in parts.items():
            first, last = header[name]["data_offsets"]
            filler = given or (below if dtype in FLOAT8 else chunk).tobytes()
            filler *= max(1, (1 << 20) // len(filler))
            for at in range(first, last, len(filler)):
                opened.write(filler[: last - at])


if __name__ == "__main__":
    write_random(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "int4", **LLAMA_8B)
