"""Formats of GGUF files: each number is what the gguf library makes of the same bytes, whole and cut in any way."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf_models import random_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.engine.weights.checkpoint import check_border
from ferrule.engine.weights.formats.gguf import GgufGroups, GgufLatent
from ferrule.engine.weights.formats.gguf_blocks import BLOCK_TYPES
from ferrule.engine.weights.gguf.rows import IN_PLACE, Alternate, Joined, Turned, ranges_of
from ferrule.engine.weights.gguf.stored import GgufTensors
from ferrule.engine.weights.gguf.weight import byte_shape, needs
from ferrule.engine.weights.gguf.weights import make
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.engine.weights.matrix import Piece, pack
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError, PlanError
from ferrule.model import Stored
from ferrule.model.gguf import SIZES

EXACT = ["F32", "F16", "BF16", *BLOCK_TYPES]


def numbers_of(kind: str, data: np.ndarray) -> np.ndarray:
    if kind == "F32":
        return data.view("<f4")
    if kind == "F16":
        return data.view("<f2").astype(np.float32)
    return gguf.quants.dequantize(data, GGMLQuantizationType[kind])


class Held:
    """`StoredTensors` of some tensors in memory."""

    def __init__(self, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
        self.data = {name: data for name, (_, data) in tensors.items()}
        self.stored = {}
        for name, (kind, data) in tensors.items():
            numbers, size = SIZES[kind]
            shape = (*data.shape[:-1], data.shape[-1] // size * numbers)
            self.stored[name] = Stored(name, kind, shape, data.nbytes)

    def array(self, key: str) -> np.ndarray:
        return self.data[key].reshape(-1)

    def read_stored(self, key: str, cut: Slicing | None = None) -> list:
        raise NotImplementedError


def cut_of(whole: np.ndarray, cut: Slicing) -> list[np.ndarray]:
    return [whole[(*[slice(None)] * cut.dim, slice(*span))] for span in cut.ranges]


@pytest.mark.parametrize("kind", list(BLOCK_TYPES))
def test_blocks_are_what_the_gguf_library_makes_of_them(kind: str) -> None:
    data = random_blocks(kind, (64, 1024))
    block = BLOCK_TYPES[kind]
    assert (block.numbers, block.size) == gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    codes, scales, offsets = block.take_apart(data.reshape(-1, block.size))
    assert codes.max() < 1 << block.layout.bits
    assert (offsets is not None) == block.layout.offsets
    found = GroupedMatrix(block.layout, codes, scales, offsets).numbers().reshape(64, 1024)
    assert np.array_equal(found, numbers_of(kind, data))


@pytest.mark.parametrize("kind", EXACT)
def test_any_rows_and_columns_are_read_by_themselves(kind: str) -> None:
    source = Held({"w": (kind, random_blocks(kind, (24, 1024)))})
    weight = make("w", {"weight": source.stored["w"]}, (24, 1024))
    whole = numbers_of(kind, source.data["w"])
    border = weight.format.border(weight, 1)
    assert border == (1 if kind not in BLOCK_TYPES else BLOCK_TYPES[kind].layout.group)
    cuts = [
        Slicing(0, 24, ((3, 11), (20, 24))),
        Slicing(0, 24, ((24, 24),), pad=2),
        Slicing(1, 1024, ((0, 512),)),
        Slicing(1, 1024, ((max(border, 2), 3 * border + 64), (1024 - border, 1024))),
    ]
    for cut in cuts:
        check_border(weight, cut)
        for found, expected in zip(weight.format.read(weight, cut, source), cut_of(whole, cut), strict=True):
            assert np.array_equal(found.numpy(), expected)
    if kind in BLOCK_TYPES:
        with pytest.raises(PlanError, match=rf"in groups of {border} \(GGUF {kind}\), and this split cuts it at 8 of"):
            check_border(weight, Slicing(1, 1024, ((0, 8),)))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(BLOCK_TYPES)),
    rows=st.lists(st.integers(0, 16), min_size=2, max_size=4),
    columns=st.lists(st.integers(0, 32), min_size=2, max_size=4),
)
def test_any_rectangle_gives_its_groups(kind: str, rows: list[int], columns: list[int]) -> None:
    source = Held({"w": (kind, random_blocks(kind, (16, 512)))})
    weight = make("w", {"weight": source.stored["w"]}, (16, 512))
    layout = BLOCK_TYPES[kind].layout
    some = tuple(zip(sorted(rows)[::2], sorted(rows)[1::2], strict=False))
    step = 512 // 32 if layout.group == 16 else 32
    places = [min(512, place * step) for place in sorted(columns)]
    spans = tuple(zip(places[::2], places[1::2], strict=False))
    assert isinstance(weight.format, GgufGroups)
    part = Rectangle(some, spans)
    found = weight.format.groups(weight, part, source)
    assert found.codes.shape == part.shape
    assert found.scales.shape == (part.shape[0], part.shape[1] // layout.group)
    whole = numbers_of(kind, source.data["w"])
    picked = np.concatenate([whole[slice(*span)] for span in some])
    if all(part.shape):
        assert np.array_equal(found.numbers(), np.concatenate([picked[:, slice(*span)] for span in spans], axis=1))


@pytest.mark.parametrize("kind", [kind for kind, block in BLOCK_TYPES.items() if block.numbers == 256])
@pytest.mark.parametrize("columns", [(0, 1024), (256, 768), (32, 544)])
def test_blocks_of_256_are_held_packed_and_lose_nothing(kind: str, columns: tuple[int, int]) -> None:
    source = Held({"w": (kind, random_blocks(kind, (40, 1024)))})
    weight = make("w", {"weight": source.stored["w"]}, (40, 1024))
    held = pack([Piece(weight, Slicing(1, 1024, (columns,)))], source, torch.float32)
    width = columns[1] - columns[0]
    whole = numbers_of(kind, source.data["w"])[:, slice(*columns)]
    assert np.array_equal(held.multiply(torch.eye(width)).T.numpy(), whole)
    layout, kinds = BLOCK_TYPES[kind].layout, 1 + BLOCK_TYPES[kind].layout.offsets
    nested = columns[0] % 256 == 0  # else float32 holds the scales of a block that is cut
    scales = kinds * (256 // layout.group + 2 if nested else 4 * 256 // layout.group)
    assert held.bytes == 48 * width // 256 * (32 * layout.bits + scales)  # 40 rows fill 48


def test_queries_and_keys_come_in_transformers_order() -> None:
    data = random_blocks("Q8_0", (48, 64))
    source = Held({"q": ("Q8_0", data)})
    weight = make("q", {"weight": source.stored["q"]}, (48, 64), rows=Turned(12))
    stored = numbers_of("Q8_0", data)
    ours = stored.reshape(4, 6, 2, 64).swapaxes(1, 2).reshape(48, 64)
    assert np.array_equal(weight.format.read(weight, None, source)[0].numpy(), ours)
    cut = Slicing(0, 48, ((5, 30),))  # not even by whole heads
    assert np.array_equal(weight.format.read(weight, cut, source)[0].numpy(), ours[5:30])


@pytest.mark.parametrize("kinds", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K"), ("Q8_0", "F16")])
@pytest.mark.parametrize("alternate", [False, True])
def test_gate_and_up_are_joined(kinds: tuple[str, str], alternate: bool) -> None:
    parts = {f"w{seed}": (kind, random_blocks(kind, (3, 8, 512), seed)) for seed, kind in enumerate(kinds)}
    source = Held(parts)
    gate, up = (numbers_of(kind, data) for kind, data in parts.values())
    if alternate:  # transformers' gpt-oss: inputs before outputs, too
        whole = np.stack([gate, up], axis=2).reshape(3, 16, 512).transpose(0, 2, 1)
        weight = make("w", source.stored, (3, 512, 16), axes=(0, 2, 1), rows=Alternate())
        cuts = [Slicing(0, 3, ((1, 3),)), Slicing(1, 512, ((64, 256),)), Slicing(2, 16, ((3, 9),))]
    else:
        whole = np.concatenate([gate, up], axis=1)
        weight = make("w", source.stored, (3, 16, 512), rows=Joined(8))
        cuts = [Slicing(0, 3, ((1, 3),)), Slicing(1, 16, ((2, 4), (10, 12))), Slicing(2, 512, ((64, 256),))]
    assert isinstance(weight.format, GgufGroups) == (kinds[0] == kinds[1])
    assert np.array_equal(weight.format.read(weight, None, source)[0].numpy(), whole)
    for cut in cuts:
        check_border(weight, cut)
        for found, expected in zip(weight.format.read(weight, cut, source), cut_of(whole, cut), strict=True):
            assert np.array_equal(found.numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(first=st.integers(0, 47), length=st.integers(0, 47), order=st.sampled_from([IN_PLACE, Turned(12), Joined(24)]))
def test_what_is_needed_of_a_part_are_the_rows_that_are_read(first: int, length: int, order: Turned) -> None:
    parts = {"a": ("Q8_0", random_blocks("Q8_0", (48, 64)))}
    if isinstance(order, Joined):
        parts = {name: ("Q8_0", random_blocks("Q8_0", (24, 64), seed)) for seed, name in enumerate("ab")}
    source = Held(parts)
    weight = make("w", source.stored, (48, 64), rows=order)
    cut = Slicing(0, 48, ((first, min(48, first + length)),))
    expected = weight.format.read(weight, cut, source)[0].numpy()
    for name, some in needs(weight, cut, source.stored):
        shape = byte_shape(source.stored[name])
        assert some is not None
        kept = np.zeros(shape, bool)
        for start, stop in some.ranges:
            kept[(*[slice(None)] * some.dim, slice(start, stop))] = True
        assert kept.sum() == sum(stop - start for start, stop in some.ranges) * shape[2], "no more than whole rows"
        source.data[name] = np.where(kept, source.data[name].reshape(shape), 0xFF).reshape(source.data[name].shape)
    named = {name for name, _ in needs(weight, cut, source.stored)}
    for name in source.data.keys() - named:
        source.data[name] = np.full_like(source.data[name], 0xFF)
    assert np.array_equal(weight.format.read(weight, cut, source)[0].numpy(), expected)


def test_ranges_of_rows() -> None:
    assert ranges_of(np.array([5, 3, 4, 9])) == ((3, 6), (9, 10))
    assert ranges_of(np.array([], np.int64)) == ()


def write(file: Path, architecture: str, tensors: dict[str, tuple[str, np.ndarray]]) -> Path:
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    for name, (kind, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_table_of_latents_is_put_together_head_by_head(tmp_path: Path) -> None:
    keys, values = random_blocks("Q8_0", (4, 16, 32)), random_blocks("F16", (4, 12, 16))
    tensors = {"blk.0.attn_k_b.weight": ("Q8_0", keys), "blk.0.attn_v_b.weight": ("F16", values.view(np.float16))}
    stored = GgufTensors(write(tmp_path / "m.gguf", "deepseek2", tensors))
    weight = stored.tensors["model.layers.0.self_attn.kv_b_proj.weight"]
    assert isinstance(weight.format, GgufLatent)
    assert weight.shape == (4 * (32 + 12), 16)
    whole = np.concatenate([numbers_of("Q8_0", keys).transpose(0, 2, 1), numbers_of("F16", values)], axis=1)
    source = Held({"k": ("Q8_0", keys)})
    source.array = stored.array  # type: ignore[method-assign]
    assert np.array_equal(weight.format.read(weight, None, source)[0].numpy(), whole.reshape(-1, 16))
    part = weight.format.read(weight, Slicing(0, 176, ((44, 132),)), source)[0]
    assert np.array_equal(part.numpy(), whole[1:3].reshape(-1, 16))
    with pytest.raises(PlanError, match="in groups of 44"):
        check_border(weight, Slicing(0, 176, ((0, 50),)))


@pytest.mark.parametrize(
    ("architecture", "name", "kind", "shape", "message"),
    [
        ("llama", "blk.0.attn_q.weight", "IQ2_XS", (64, 256), "is of the type IQ2_XS, which is not run here; get the"),
        ("llama", "blk.0.attn_q.weight", "F32", (62, 64), "has 62 rows, which do not divide by 4 heads"),
        ("llama", "output_norm.weight", "Q8_0", (64,), "is of Q8_0 and has the shape [64], as no weight"),
        ("bloom", "token_embd.weight", "F32", (8, 64), "the family 'bloom', whose GGUF files are not run here"),
        ("qwen3moe", "blk.0.ffn_gate_exps.weight", "F32", (2, 8, 64), "the experts of model.layers.0 lack gate or up"),
        ("deepseek2", "blk.0.attn_k_b.weight", "F32", (2, 8, 64), "has attn_k_b and attn_v_b of shapes"),
    ],
)
def test_what_is_not_run_is_named(
    architecture: str, name: str, kind: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    numbers, size = SIZES[kind]
    data = np.zeros((*shape[:-1], shape[-1] // numbers * size), np.uint8)
    file = write(tmp_path / "m.gguf", architecture, {name: (kind, data.view(np.float32) if kind == "F32" else data)})
    with pytest.raises(ModelError) as caught:
        GgufTensors(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
