"""FP8 in blocks against transformers' own dequantising, and against the formula where blocks are ragged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_models import Quantised, check_cut, check_logits, check_model, in_layers, module, packed_model, read, write
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.groups import FP4
from ferrule.errors import ModelError

MANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def told(*block: int) -> dict[str, Any]:
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(block)}


def quantise(weight: Tensor, rows: int = 32, columns: int = 32, dtype: torch.dtype = torch.float8_e4m3fn) -> Quantised:
    grid = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
    scales, codes, numbers = torch.empty(grid), torch.empty(weight.shape, dtype=dtype), torch.empty(weight.shape)
    for i in range(grid[0]):
        for j in range(grid[1]):
            where = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scales[i, j] = weight[where].float().abs().max() / torch.finfo(dtype).max
            codes[where] = (weight[where].float() / scales[i, j]).to(dtype)
            numbers[where] = codes[where].float() * scales[i, j]
    return {"weight": codes, "weight_scale_inv": scales}, numbers


def matrix(outputs: int = 96, inputs: int = 128) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu, torch.uint8])
def test_numbers_are_transformers_(scale: torch.dtype, tmp_path: Path) -> None:
    parts, _ = quantise(matrix())
    exponents = torch.randint(100, 130, parts["weight_scale_inv"].shape, dtype=torch.uint8)
    small = {torch.uint8: exponents, torch.float8_e8m0fnu: exponents.view(torch.float8_e8m0fnu)}
    parts["weight_scale_inv"] = small.get(scale, parts["weight_scale_inv"].to(scale))
    expected = Fp8Dequantize(None)._dequantize_one(*parts.values(), output_dtype=torch.float32)
    assert torch.equal(read(write(tmp_path, module(parts), told(32, 32))), expected)


def small(weight: Tensor) -> Quantised:
    """FP4 with a power of two for each 32 of a row, as DeepSeek-V4's experts have it."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, -1, 32)
    exponents = torch.frexp(groups.abs().amax(-1) / 6)[1].clamp(-120, 120)
    values = torch.tensor([*FP4, *(-value for value in FP4)])
    codes = (groups.unsqueeze(-1) / torch.exp2(exponents.float())[..., None, None] - values).abs().argmin(-1)
    pairs = codes.view(outputs, inputs // 2, 2)
    octets = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8).view(torch.int8)
    scales = (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    numbers = Fp8Dequantize(None)._dequantize_one(octets, scales, output_dtype=torch.float32)
    assert torch.equal(numbers, (values[codes] * torch.exp2(exponents.float())[..., None]).view(outputs, inputs))
    return {"weight": octets, "scale": scales}, numbers


def test_fp4_beside_fp8_is_transformers_(tmp_path: Path) -> None:
    parts, expected = small(matrix())
    assert torch.equal(read(write(tmp_path, module(parts), told(32, 32))), expected)


@MANY
@given(st.data(), st.booleans())
def test_any_cut_of_fp4_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject, stacked: bool) -> None:
    parts, _ = small(matrix(100, 192))
    if stacked:
        parts = {leaf: torch.stack([each, each]) for leaf, each in parts.items()}
    check_cut(write(tmp_path, module(parts), told(64, 64)), data)


@pytest.mark.slow
def test_experts_in_fp4_beside_fp8(tmp_path: Path) -> None:
    """As DeepSeek-V4 was published."""

    def by_kind(name: str, weight: Tensor) -> Quantised | None:
        if ".experts." in name and ".shared_experts." not in name:
            return small(weight)
        return quantise(weight, 16, 16) if name.endswith(("q_b_proj", "wq_b", "o_b_proj", "wo_b")) else None

    directory = packed_model(tmp_path / "m", told(16, 16), by_kind, family="deepseek_v4")
    with Checkpoint(directory) as checkpoint:
        assert {each.format.name for each in checkpoint.tensors.values()} == {"fp8", "plain"}
        assert any(weight.parts.keys() == {"packed", "exponents"} for weight in checkpoint.tensors.values())
    check_logits(directory, 1)
    check_logits(directory, 2)
    check_logits(directory, 1, 2)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_blocks_at_the_edges_may_be_smaller(dtype: torch.dtype, tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(100, 176), 64, 64, dtype)
    assert torch.equal(read(write(tmp_path, module(parts), told(64, 64))), numbers)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale", "scale"])
def test_one_scale_may_serve_the_whole_tensor(shape: tuple[int, ...], name: str, tmp_path: Path) -> None:
    codes, scale = matrix().to(torch.float8_e4m3fn), torch.full(shape, 0.37)
    found = read(write(tmp_path, {"m.weight": codes, f"m.{name}": scale}, {"quant_method": "fp8"}))
    assert torch.equal(found, codes.float() * 0.37)


def test_the_scale_of_a_tensor_may_be_one_exponent(tmp_path: Path) -> None:
    codes, scale = matrix().to(torch.float8_e4m3fn), torch.tensor(125, dtype=torch.uint8)
    found = read(write(tmp_path, {"m.weight": codes, "m.weight_scale": scale}, {"quant_method": "fp8"}))
    assert torch.equal(found, codes.float() / 4)


@pytest.mark.parametrize("code", range(2))
def test_every_code_has_torch_s_number(code: int, tmp_path: Path) -> None:
    dtype = (torch.float8_e4m3fn, torch.float8_e5m2)[code]
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).view(16, 16)
    tensors = {"m.weight": codes, "m.weight_scale_inv": torch.ones(1)}
    found = read(write(tmp_path, tensors, {"quant_method": "fp8"}))
    assert torch.equal(found.nan_to_num(7.0), codes.float().nan_to_num(7.0))


@MANY
@given(st.data(), st.booleans())
def test_any_cut_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject, stacked: bool) -> None:
    parts, _ = quantise(matrix(100, 176), 64, 64)
    if stacked:
        parts = {leaf: torch.stack([each, each]) for leaf, each in parts.items()}
    check_cut(write(tmp_path, module(parts), told(64, 64)), data)


def test_a_model_gives_the_logits_of_its_numbers(tmp_path: Path) -> None:
    check_model(packed_model(tmp_path / "m", told(32, 32), in_layers(quantise)))


def test_numbers_of_8_bits_without_scales_are_plain(tmp_path: Path) -> None:
    codes = matrix().to(torch.float8_e4m3fn)
    write(tmp_path, {"m.weight": codes}, {})
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors["m.weight"].format.name == "plain"


@pytest.mark.parametrize(
    ("change", "config", "why"),
    [
        ({"weight_scale_inv": None}, told(32, 32), r"m\.weight is stored packed, but m\.weight_scale_inv is missing"),
        ({"weight_scale_inv": torch.zeros(2, 5)}, told(32, 32), r"m\.weight_scale_inv has the shape \[2, 5\]"),
        ({"weight_scale_inv": torch.zeros(0, 4)}, told(32, 32), r"m\.weight_scale_inv has the shape \[0, 4\]"),
        ({"weight_scale_inv": torch.zeros(3, 4).int()}, told(32, 32), r"m\.weight_scale_inv has the dtype I32"),
        (small(matrix())[0] | {"weight_scale_inv": None, "scale": torch.zeros(96, 5)}, {}, r"\[96, 4\] would fit"),
        ({}, told(0, 32), r"weight_block_size \[0, 32\] is no pair of whole numbers"),
        ({}, told(32), r"weight_block_size \[32\] is no pair"),
    ],
)
def test_damage_is_named(change: dict[str, Tensor | None], config: dict[str, Any], why: str, tmp_path: Path) -> None:
    parts = quantise(matrix())[0] | change
    kept = {leaf: each for leaf, each in parts.items() if each is not None}
    with pytest.raises(ModelError, match=why):
        read(write(tmp_path, module(kept), config))
