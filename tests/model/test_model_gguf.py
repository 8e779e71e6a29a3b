"""GGUF headers: counted exactly, and never trusted further than the file reaches."""

from __future__ import annotations

import os
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_models import gguf_text, write_gguf

from ferrule.errors import FerruleError, ModelError
from ferrule.model import Stored, read_model
from ferrule.model.gguf import files, gguf_file, model_name, read_gguf, read_gguf_model

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


KEY = gguf_text("k")
ONE_KEY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + KEY
ONE_TENSOR = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_text("t")


def header_of(*tensors: bytes) -> bytes:
    text = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0) + b"".join(tensors)
    return text + b"\0" * (-len(text) % 32) + bytes(4096)


def info(name: str, kind: int, offset: int, *shape: int) -> bytes:
    return gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GGML", "does not begin with GGUF"),
        (b"GGUF" + struct.pack(">I", 3), "is a big-endian GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "its version is 1, not 2 or 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "is said to hold 1,099,511,627,776 tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50), "the name of key 0 is said to have"),
        (ONE_KEY + struct.pack("<IIQ", 9, 4, 1 << 50), "k is said to have"),
        (ONE_KEY + struct.pack("<IIQ", 9, 0, 1 << 23) + bytes(1 << 23), "more than any model's"),
        (ONE_KEY + struct.pack("<IIQ", 9, 8, 2) + gguf_text("a") + struct.pack("<Q", 1 << 62), "an entry of k is said"),
        (ONE_KEY + struct.pack("<IIQ", 9, 9, 1), "array of the type 9"),
        (ONE_KEY + struct.pack("<I", 77), "k has the type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (KEY + struct.pack("<II", 4, 1)), "has the key k twice"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("general.alignment") + struct.pack("<II", 4, 48),
            "general.alignment is 48, which is no power of two",
        ),
        (ONE_TENSOR + struct.pack("<I", 1000), "said to have 1000 dimensions"),
        (ONE_TENSOR + struct.pack("<IQIQ", 1, 1 << 60, 0, 0), "ends beyond the file's"),
        (ONE_TENSOR + struct.pack("<IQIQ", 1, 1, 999, 0), "t has the type 999"),
        (ONE_TENSOR + struct.pack("<IQIQ", 1, 0, 0, 0), "does not divide into F32's blocks"),
        (header_of(info("t", 8, 0, 48, 2)), "t of shape [2, 48] does not divide into Q8_0's blocks of 32"),
        (header_of(info("t", 0, 8, 4)), "t begins at 8, which is no multiple of 32"),
        (header_of(info("t", 0, 0, 4), info("t", 0, 32, 4)), "has the tensor t twice"),
        (header_of(info("t", 0, 0, 16), info("u", 0, 32, 4)), "u and t lie over each other"),
    ],
)
def test_a_header_that_lies_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_gguf(file, arrays=True)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert re.search("download it again|get the little-endian one", str(caught.value))


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(version: int, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", VALUES, {"b": tensor(F32, 8), "a": tensor(Q8_0, 32, 3)}, version)
    short, whole = read_gguf(file), read_gguf(file, arrays=True)
    assert (
        short.tensors
        == whole.tensors
        == (
            Stored("b", "F32", (8,), 32, 0),
            Stored("a", "Q8_0", (3, 32), 102, 32),
        )
    )
    assert short.data == file.stat().st_size - 32 - 128
    assert whole.values["tokenizer.ggml.tokens"] == VALUES["tokenizer.ggml.tokens"]
    assert short.values["tokenizer.ggml.tokens"] == range(5000), "long arrays are passed over"


def test_a_file_that_ends_at_any_byte_is_refused(tmp_path: Path) -> None:
    short = {**VALUES, "tokenizer.ggml.tokens": ["a", "b"]}
    whole = write_gguf(tmp_path / "whole.gguf", short, {"a": tensor(F32, 8), "b": tensor(F32, 8)}).read_bytes()
    file = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf .*download it again"):
            read_gguf(file)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    def part(number: int, tensors: list[str], **values: Any) -> Path:
        keys = {**VALUES, "split.count": 2, "split.no": number - 1, **values}
        name = f"big-{number:05d}-of-00002.gguf"
        return write_gguf(tmp_path / name, keys, {each: tensor(F32, 8) for each in tensors})

    first, second = part(1, ["a", "b"], **{"split.tensors.count": 3}), part(2, ["c"])
    assert [each.name for each in read_gguf_model(first).tensors] == ["a", "b", "c"]
    with pytest.raises(ModelError, match=r"give the first, whose name ends in -00001-of-00002\.gguf"):
        read_gguf_model(second)
    part(2, ["c", "d"])
    with pytest.raises(ModelError, match=r"hold 4 tensors, not 3; download it again"):
        read_gguf_model(first)
    part(2, ["a"])
    with pytest.raises(ModelError, match="hold a tensor twice"):
        read_gguf_model(first)
    part(2, ["c"], **{"split.no": 0})
    with pytest.raises(ModelError, match=r"00002-of-00002\.gguf is not part 2 of 2"):
        read_gguf_model(first)


def test_a_header_is_read_again_where_its_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(files, "read_gguf", lambda file, **_: read.append(file) or read_gguf(file))
    file = tmp_path / "m.gguf"

    def tensors_of_twice(name: str, written: float) -> set[str]:
        write_gguf(file, VALUES, {name: tensor(F32, 8)})
        os.utime(file, (written, written))
        return {each.name for _ in range(2) for each in read_gguf_model(file).tensors}

    long_ago = time.time() - 60
    assert (tensors_of_twice("a", long_ago), len(read)) == ({"a"}, 1)
    assert (tensors_of_twice("b", long_ago + 1), len(read)) == ({"b"}, 2), "of the same size"
    assert (tensors_of_twice("c", time.time()), len(read)) == ({"c"}, 4), "it may be changed again at the same time"
    file.unlink()
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_gguf_model(file)


def test_the_one_model_of_a_directory_is_found(tmp_path: Path) -> None:
    assert gguf_file(tmp_path) is None
    for name in ("b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "mmproj-b.gguf"):
        (tmp_path / name).touch()
    assert gguf_file(tmp_path) == tmp_path / "b-00001-of-00002.gguf"
    assert model_name(tmp_path / "b-00001-of-00002.gguf") == "b"
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"holds 2 GGUF models \(a\.gguf, b-00001-of-00002\.gguf\); give the file"):
        gguf_file(tmp_path)
    (tmp_path / "config.json").touch()
    assert gguf_file(tmp_path) is None


@pytest.mark.parametrize("value", ["many", [1, 2], (1 << 31) + 1])
def test_a_value_that_cannot_be_is_named(value: Any, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "odd.gguf", {**VALUES, "llama.rope.dimension_count": value}, tensors())
    with pytest.raises(FerruleError, match=r"llama\.rope\.dimension_count is "):
        read_model(str(file))


numbers = st.one_of(st.integers(0, 300), st.sampled_from([1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1]))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Of the right form, with counts, lengths, shapes and offsets that may be anything."""
    parts = [b"GGUF", struct.pack("<I", draw(st.sampled_from([1, 2, 3, 3 << 24])))]
    count, pairs = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    parts.append(struct.pack("<QQ", draw(st.sampled_from([count, count + 1, 1 << 40])), pairs))
    for _ in range(pairs):
        parts.append(gguf_text(draw(st.sampled_from(["a", "general.alignment", "split.count"]))))
        kind = draw(st.integers(0, 14))
        parts.append(struct.pack("<I", kind))
        if kind == 9:
            parts.append(struct.pack("<IQ", draw(st.integers(0, 13)), draw(numbers)))
        parts.append(draw(st.binary(max_size=24)))
    for _ in range(count):
        parts.append(gguf_text(draw(st.sampled_from(["x", "y", "z"]))))
        shape = draw(st.lists(numbers, max_size=5))
        parts.append(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        parts.append(struct.pack("<IQ", draw(st.integers(0, 40)), draw(numbers)))
    return b"".join(parts) + draw(st.binary(max_size=200))


@settings(max_examples=150, deadline=1000)
@given(content=headers())
def test_no_header_breaks_the_reader(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.gguf"
    file.write_bytes(content)
    try:
        found = read_gguf(file, arrays=True)
    except ModelError:
        return
    assert all(0 <= found.data + each.start <= len(content) - each.bytes for each in found.tensors)


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
        read_model(str(file))
    except FerruleError:
        return
    assert all(each.bytes <= len(whole) for each in found.tensors)


def test_a_sparse_file_of_lies_costs_nothing(tmp_path: Path) -> None:
    """Counts that the file's size would allow are refused all the same, before anything is made of them."""
    file = tmp_path / "sparse.gguf"
    with file.open("wb") as opened:
        opened.write(ONE_KEY + struct.pack("<IIQ", 9, 8, 1 << 33))
        opened.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="more than any model's"):
            read_gguf(file, arrays=True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
