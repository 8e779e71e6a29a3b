"""AWQ against its published formulas: eight outputs in a word, in AutoAWQ's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_models import Quantised, check_cut, check_model, in_layers, module, packed_model, read, write
from torch import Tensor

from ferrule.errors import ModelError

MANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TOLD: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def words(codes: Tensor) -> Tensor:
    """(n, outputs) as words of eight outputs."""
    found = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.long)
    for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        found |= codes[:, output::8].long() << (4 * place)
    return torch.where(found >= 1 << 31, found - (1 << 32), found).int()


def quantise(weight: Tensor, group: int = 32) -> Quantised:
    grouped = weight.float().T.unflatten(0, (-1, group))  # (groups, group, outputs)
    low, high = grouped.amin(1), grouped.amax(1)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(0, 15)
    codes = (grouped / scales.float().unsqueeze(1) + zeros.unsqueeze(1)).round().clamp(0, 15)
    numbers = (codes - zeros.unsqueeze(1)) * scales.float().unsqueeze(1)
    parts = {"qweight": words(codes.flatten(0, 1)), "scales": scales, "qzeros": words(zeros)}
    return parts, numbers.flatten(0, 1).T


def matrix(outputs: int = 40, inputs: int = 128) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_numbers_are_the_formula_s(group: int, tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(), group)
    assert torch.equal(read(write(tmp_path, module(parts), TOLD | {"group_size": group})), numbers)


@MANY
@given(st.data())
def test_any_cut_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject) -> None:
    check_cut(write(tmp_path, module(quantise(matrix())[0]), TOLD), data)


def test_a_model_gives_the_logits_of_its_numbers(tmp_path: Path) -> None:
    check_model(packed_model(tmp_path / "m", TOLD, in_layers(quantise)))


@pytest.mark.parametrize(
    ("change", "config", "why"),
    [
        ({"scales": None}, {}, r"m\.qweight is stored packed, but m\.scales is missing"),
        ({"qzeros": torch.zeros(4, 4).int()}, {}, r"m\.qzeros has the shape \[4, 4\], where \[4, 5\]"),
        ({"scales": torch.zeros(4, 48)}, {}, r"m\.scales has the shape \[4, 48\], where \[4, 40\]"),
        ({"qweight": torch.zeros(128, 5)}, {}, r"m\.qweight has the dtype F32"),
        ({"scales": torch.zeros(3, 40), "qzeros": torch.zeros(3, 5).int()}, {}, r"m\.scales .* in equal groups"),
        ({}, {"version": "gemv"}, r"stored by AWQ for 'gemv' with 4 bits, which is not run here"),
        ({}, {"bits": 3}, r"for 'gemm' with 3 bits"),
    ],
)
def test_damage_is_named(change: dict[str, Tensor | None], config: dict[str, Any], why: str, tmp_path: Path) -> None:
    parts = quantise(matrix())[0] | change
    kept = {leaf: each for leaf, each in parts.items() if each is not None}
    with pytest.raises(ModelError, match=why):
        read(write(tmp_path, module(kept), TOLD | config))
