"""GGUF headers: counted exactly, and never trusted further than the file reaches."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_models import gguf_text, write_gguf

from ferrule.errors import ModelError
from ferrule.model import read_model
from ferrule.model.gguf import read_gguf

F32, Q8_0, Q4_K = 0, 8, 12
VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": [4, 4],
    "llama.context_length": 2048,
    "llama.rope.dimension_count": 32,
    "tokenizer.ggml.tokens": [f"token {number}" for number in range(5000)],
}
SIZES = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144)}


def tensor(kind: int, *shape: int) -> tuple[int, tuple[int, ...], int]:
    """Shapes are (inputs, outputs) in GGUF."""
    numbers, size = SIZES[kind]
    elements = 1
    for length in shape:
        elements *= length
    return kind, shape, elements // numbers * size


def tensors() -> dict[str, tuple[int, tuple[int, ...], int]]:
    found = {"token_embd.weight": tensor(Q8_0, 256, 5000), "output_norm.weight": tensor(F32, 256)}
    for layer in range(2):
        name = f"blk.{layer}"
        found |= {f"{name}.{norm}_norm.weight": tensor(F32, 256) for norm in ("attn", "ffn")}
        found |= {f"{name}.attn_{each}.weight": tensor(Q4_K, 256, 256) for each in ("q", "output")}
        found |= {f"{name}.attn_{each}.weight": tensor(Q4_K, 256, 128) for each in ("k", "v")}
        found |= {f"{name}.ffn_{each}.weight": tensor(Q4_K, 256, 512) for each in ("gate", "up")}
        found[f"{name}.ffn_down.weight"] = tensor(Q4_K, 512, 256)
    return found


def test_a_gguf_file_is_counted_by_its_header(tmp_path: Path) -> None:
    spec = read_model(str(write_gguf(tmp_path / "small.gguf", VALUES, tensors())))
    assert (spec.name, spec.model_type, spec.counted) == ("small", "llama", "headers")
    assert spec.bytes == sum(size for _, _, size in tensors().values())
    layer = spec.decoder[0]
    assert layer.weights.dense.parameters == 3 * 256 * 512
    assert layer.weights.dense.bytes == 3 * 512 * 144
    assert layer.weights.key_value.parameters == 2 * 256 * 128
    assert layer.weights.norm.bytes == 2 * 256 * 4
    assert (spec.vocab_size, spec.max_context, spec.key_value_heads, spec.tied) == (5000, 2048, 4, True)
    assert spec.stored == "GGUF Q8_0, Q4_K"
    assert spec.cache_bytes(1) == 2 * 2 * 4 * 32 * 2
    plain = read_model(str(tmp_path / "small.gguf"), weights="float16")
    assert plain.parameters == spec.parameters
    assert plain.bytes == 2 * spec.parameters


def test_parts_are_put_together_from_the_first(tmp_path: Path) -> None:
    held = sorted(tensors().items())
    values = {**VALUES, "split.count": 2}
    first = write_gguf(tmp_path / "big-00001-of-00002.gguf", values, dict(held[:7]))
    second = write_gguf(tmp_path / "big-00002-of-00002.gguf", {"split.count": 2}, dict(held[7:]))
    assert read_model(str(first)).bytes == sum(size for _, _, size in tensors().values())
    assert read_model(str(tmp_path)).decoder == read_model(str(first)).decoder
    second.unlink()
    with pytest.raises(ModelError, match=r"big-00002-of-00002\.gguf cannot be read"):
        read_model(str(first))


def test_experts_are_told_apart_by_their_names(tmp_path: Path) -> None:
    values = {key.replace("llama.", "qwen3moe."): value for key, value in VALUES.items()}
    values |= {
        "general.architecture": "qwen3moe",
        "qwen3moe.expert_count": 4,
        "qwen3moe.expert_used_count": 2,
        "qwen3moe.expert_feed_forward_length": 512,
    }
    held = {name: value for name, value in tensors().items() if ".ffn_" not in name or "norm" in name}
    for layer in range(2):
        held |= {f"blk.{layer}.ffn_{each}_exps.weight": tensor(Q4_K, 256, 512, 4) for each in ("gate", "up")}
        held[f"blk.{layer}.ffn_down_exps.weight"] = tensor(Q4_K, 512, 256, 4)
        held[f"blk.{layer}.ffn_gate_inp.weight"] = tensor(F32, 256, 4)
        held |= {f"blk.{layer}.attn_{each}_norm.weight": tensor(F32, 32) for each in "qk"}
    spec = read_model(str(write_gguf(tmp_path / "moe.gguf", values, held)))
    layer = spec.decoder[1]
    assert spec.model_type == "qwen3_moe"
    assert layer.weights.routed.parameters == 4 * 3 * 256 * 512
    assert layer.weights.other.parameters == 4 * 256
    assert layer.parameters - layer.active_parameters == layer.weights.routed.parameters // 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGML", "does not begin with GGUF"),
        (b"GGUF" + struct.pack(">I", 3), "its version is 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "is said to hold 1,099,511,627,776 tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50), "the name of key 0 is said to have"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("k") + struct.pack("<IIQ", 9, 4, 1 << 50),
            "k is said to have",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("k") + struct.pack("<IIQ", 9, 9, 1), "array of the type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("k") + struct.pack("<I", 77), "k has the type 77"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t") + struct.pack("<I", 1000),
            "said to have 1000 dimensions",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t") + struct.pack("<IQIQ", 1, 1 << 60, 0, 0),
            "ends beyond the file's",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t") + struct.pack("<IQIQ", 1, 1, 999, 0),
            "t has the type 999",
        ),
    ],
)
def test_a_header_that_lies_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_gguf(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


@settings(max_examples=60)
@given(data=st.data())
def test_no_damage_breaks_the_reader(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.getbasetemp()
    short = {**VALUES, "tokenizer.ggml.tokens": ["a", "b"]}
    whole = bytearray(write_gguf(directory / "whole.gguf", short, {"a": tensor(F32, 8)}).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file = directory / "damaged.gguf"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        found = read_gguf(file)
    except ModelError:
        return
    assert all(each.bytes <= len(whole) for each in found.tensors)
