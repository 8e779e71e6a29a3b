"""GPTQ against its published formulas: packed here bit by bit, with version 1's zero points and act-order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_models import Quantised, check_cut, check_model, in_layers, module, packed_model, read, write
from torch import Tensor

from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.formats.acting import pack_order
from ferrule.engine.weights.groups import Rectangle
from ferrule.errors import ModelError

MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bits_of(codes: Tensor, bits: int) -> Tensor:
    """Codes (n, m) end to end along the first dimension, in words of 32 bits (words, m)."""
    single = (codes.long().unsqueeze(1) >> torch.arange(bits).view(1, -1, 1)) & 1
    stream = single.reshape(-1, codes.shape[1])
    stream = torch.cat([stream, stream.new_zeros(-len(stream) % 32, codes.shape[1])])
    words = (stream.unflatten(0, (-1, 32)) << torch.arange(32).view(1, -1, 1)).sum(1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def quantise(
    weight: Tensor,
    bits: int = 4,
    group: int = 32,
    version: int = 1,
    symmetric: bool = False,
    order: bool = False,
    scale: torch.dtype = torch.float16,
) -> Quantised:
    """(outputs, inputs) in groups of inputs, each with a scale and a zero point; ``order``: of inputs in any order."""
    outputs, inputs = weight.shape
    group = inputs if group == -1 else group
    owners = torch.arange(inputs) // group
    if order:
        owners = owners[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    groups = int(owners.max()) + 1
    top = (1 << bits) - 1
    scales, zeros = torch.empty(groups, outputs, dtype=scale), torch.empty(groups, outputs)
    for index in range(groups):
        some = weight.float()[:, owners == index]
        if symmetric:
            scales[index], zeros[index] = 2 * some.abs().amax(1) / top, 1 << (bits - 1)
        else:
            low, high = some.amin(1).clamp(max=0), some.amax(1).clamp(min=0)
            scales[index] = (high - low) / top
            zeros[index] = (-low / scales[index].float()).round().clamp(0, top)
    each, zero = scales.float()[owners].T, zeros[owners].T
    codes = (weight.float() / each + zero).round().clamp(0, top)
    packed = bits_of(zeros.T, bits).T
    if version == 1:
        ones = bits_of(torch.ones(outputs, 1), bits).T  # taken from whole words, as GPTQModel does
        packed = packed - ones if bits != 3 else bits_of((zeros.T - 1) % 8, 3).T
    parts = {
        "qweight": bits_of(codes.T, bits),
        "scales": scales,
        "qzeros": packed.contiguous(),
        "g_idx": owners.int(),
    }
    return parts, (codes - zero) * each


def told(bits: int = 4, group: int = 32, version: int = 1, symmetric: bool = False, **more: Any) -> dict[str, Any]:
    name = "gptq" if version == 1 else "gptq_v2"
    told = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "checkpoint_format": name}
    return told | more


def matrix(outputs: int = 96, inputs: int = 128) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs * inputs))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("symmetric", "order"), [(False, True), (True, False)])
def test_numbers_are_the_formula_s(
    bits: int, group: int, version: int, symmetric: bool, order: bool, tmp_path: Path
) -> None:
    parts, numbers = quantise(matrix(), bits, group, version, symmetric, order)
    assert torch.equal(read(write(tmp_path, module(parts), told(bits, group, version, symmetric))), numbers)


def test_a_zero_point_of_zero_borrows_of_the_next_in_version_1(tmp_path: Path) -> None:
    weight = matrix().abs()  # its zero points are all 0
    parts, numbers = quantise(weight)
    assert (bits_of(torch.zeros(96, 1), 4) == 0).all()
    assert torch.equal(read(write(tmp_path, module(parts), told())), numbers)


def test_older_files_have_no_g_idx_and_a_smaller_last_group(tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(inputs=160), group=64)
    del parts["g_idx"]
    assert torch.equal(read(write(tmp_path, module(parts), told(group=64))), numbers)


def test_a_module_may_have_other_bits_than_the_rest(tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(), bits=8, group=64, scale=torch.bfloat16)
    assert torch.equal(read(write(tmp_path, module(parts), told(dynamic={"m": {"bits": 8}}))), numbers)


@MANY
@given(st.data(), st.sampled_from([2, 3, 4, 8]), st.booleans(), st.booleans())
def test_any_cut_is_that_part_of_the_whole(
    tmp_path: Path, data: st.DataObject, bits: int, symmetric: bool, order: bool
) -> None:
    parts, _ = quantise(matrix(), bits, 32, 1, symmetric, order)
    check_cut(write(tmp_path, module(parts), told(bits, 32, 1, symmetric)), data)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200))
def test_a_rank_s_columns_stand_in_packed_groups_of_one_scale(owners: list[int]) -> None:
    groups, order, size = pack_order(torch.tensor(owners).numpy())
    assert size % 16 == 0
    assert len(order) == len(groups) * size
    assert sorted(order[order >= 0].tolist()) == list(range(len(owners)))
    for index, group in enumerate(groups):
        held = [each for each in order[index * size : (index + 1) * size] if each >= 0]
        assert held
        assert {owners[each] for each in held} == {group}


def test_whole_groups_of_a_whole_matrix_are_not_filled_up(tmp_path: Path) -> None:
    write(tmp_path, module(quantise(matrix(), order=True)[0]), told())
    with Checkpoint(tmp_path) as checkpoint:
        weight: Any = checkpoint.tensors["m.weight"]
        found = weight.format.groups(weight, Rectangle(((0, 96),), ((0, 128),)), checkpoint)
    assert found.layout.group == 32
    assert (found.order >= 0).all()


@pytest.mark.parametrize("order", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_model_gives_the_logits_of_its_numbers(order: bool, tmp_path: Path) -> None:
    quantiser = in_layers(lambda weight: quantise(weight, order=order))
    check_model(packed_model(tmp_path / "m", told(desc_act=order), quantiser))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scales": None}, r"m\.qweight is stored packed, but m\.scales is missing"),
        ({"qzeros": None}, r"m\.qzeros is missing"),
        ({"qweight": torch.zeros(16, 95, dtype=torch.int32)}, r"m\.qweight has the shape \[16, 95\], where \[16, 96\]"),
        ({"qweight": torch.zeros(16, 96)}, r"m\.qweight has the dtype F32, where I32 is needed"),
        ({"qzeros": torch.zeros(4, 15, dtype=torch.int32)}, r"m\.qzeros has the shape .* \(2, 3, 4 or 8 bits\)"),
        (
            {"scales": torch.zeros(5, 96), "qzeros": torch.zeros(5, 12).int()},
            r"m\.scales .* 128 inputs in equal groups",
        ),
        (
            {"scales": torch.zeros(0, 96), "qzeros": torch.zeros(0, 12).int()},
            r"m\.scales .* 128 inputs in equal groups",
        ),
        ({"g_idx": torch.zeros(64, dtype=torch.int32)}, r"m\.g_idx has the shape \[64\], where \[128\]"),
        ({"g_idx": torch.full((128,), 4, dtype=torch.int32)}, r"m\.g_idx names groups from 4 to 4, but there are 4"),
    ],
)
def test_damage_is_named(change: dict[str, Tensor | None], why: str, tmp_path: Path) -> None:
    parts = quantise(matrix())[0] | change
    write(tmp_path, module({leaf: each for leaf, each in parts.items() if each is not None}), told())
    with pytest.raises(ModelError, match=why):
        read(tmp_path)


def test_zero_points_that_differ_from_what_is_said_are_named(tmp_path: Path) -> None:
    write(tmp_path, module(quantise(matrix())[0]), told(symmetric=True))
    with pytest.raises(ModelError, match=r'm\.qzeros has other zero points than 8, although .* "sym": true'):
        read(tmp_path)
