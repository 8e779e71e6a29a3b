"""The Metal kernel's own text, run on the processor, equals the formats' formula; what fails is not taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from interpreted_product import LAYOUT, ODD
from metal_on_host import COMPILER, shader_compiler

from ferrule.engine.selftest.device_check import random_groups
from ferrule.engine.weights import device_matrix, metal_product
from ferrule.engine.weights.device_matrix import DeviceMatrix, hold, kernels_for
from ferrule.engine.weights.stack import DeviceStack
from ferrule.model.packing import GroupLayout

CPU = torch.device("cpu")
ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="a C++ compiler and fibres of Linux run the kernel"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that are compiled once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.mps, "compile_shader", shader_compiler(tmp_path_factory.mktemp("metal")))
        metal_product._library.cache_clear()
        yield
    metal_product._library.cache_clear()
    metal_product._right.cache_clear()


def error(layout: GroupLayout, outputs: int, columns: int, rows: int, dtype: torch.dtype) -> float:
    groups = random_groups(layout, outputs, columns)
    packed = hold(groups, dtype, CPU).packed
    x = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)
    found = metal_product.multiply(packed, x)
    assert (found.dtype, found.shape) == (dtype, (2, rows, outputs))
    assert metal_product.multiply(packed, x[:, :0]).shape == (2, 0, outputs)
    expected = x.float() @ torch.from_numpy(groups.numbers()).T
    return float((found.float() - expected).abs().max() / expected.abs().max())


def _mark(name: str) -> str:
    """One of each kind is for CI: without offsets, with offsets, with zero points, of a table, of bytes."""
    return "slow" if name in ("Q4_0", "AWQ", "MXFP4", "Q8_0") else "soak"


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each == "Q4_K" else getattr(pytest.mark, _mark(each))) for each in LAYOUT],
)
def test_products_are_those_of_the_numbers(name: str, made: None) -> None:
    packed = hold(random_groups(LAYOUT[name], 8, 512), torch.float32, CPU).packed
    assert metal_product.fits(packed)
    for dtype, allowed in ERRORS.items():
        for rows in (1, 2, 9):
            assert error(LAYOUT[name], 21, 512, rows, dtype) < allowed


@pytest.mark.slow
@pytest.mark.parametrize(("outputs", "columns"), ODD)
@pytest.mark.parametrize("rows", [17, pytest.param(1, marks=pytest.mark.soak)])
def test_shapes_that_fill_nothing_up(outputs: int, columns: int, rows: int, made: None) -> None:
    assert error(LAYOUT["AWQ" if columns % 128 == 0 else "Q4_1"], outputs, columns, rows, torch.float32) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_that_do_not_end_on_a_word_of_codes(bits: int, made: None) -> None:
    """A last piece of a row with fewer than 8 columns, and rows that begin anywhere."""
    layout = GroupLayout(bits, 0, "f32", zero=1 << (bits - 1))
    assert error(layout, 7, 270, 3, torch.float32) < 1e-5


@pytest.mark.parametrize("rows", [7, pytest.param(1, marks=pytest.mark.slow), pytest.param(80, marks=pytest.mark.slow)])
def test_rows_take_the_matrix_of_their_expert(rows: int, made: None) -> None:
    """The first and the last, none of one, and some that are behind all."""
    matrices, outputs, columns = 5, 24, 512
    groups = random_groups(LAYOUT["Q4_K"], matrices * outputs, columns)
    packed = hold(groups, torch.float32, CPU).packed
    generator = torch.Generator().manual_seed(rows)
    chosen = torch.randint(0, matrices + 1, (rows,), generator=generator).sort().values
    chosen[chosen == 2] = 1
    ends = torch.searchsorted(chosen, torch.arange(matrices), right=True).int()
    x = torch.randn(rows, columns, generator=generator)
    found = metal_product.multiply_stack(packed, x, ends)[: ends[-1]]
    numbers = torch.from_numpy(groups.numbers()).view(matrices, outputs, columns)
    expected = [numbers[matrix] @ row for matrix, row in zip(chosen, x[: ends[-1]], strict=False)]
    if expected:
        assert (found - torch.stack(expected)).abs().max() < 1e-4


@pytest.mark.slow
def test_groups_that_lanes_would_share_are_left_to_torch(made: None) -> None:
    for group, takes in ((12, False), (160, True), (0, True)):
        packed = hold(random_groups(GroupLayout(8, group, "f32", zero=128), 4, 480), torch.float32, CPU).packed
        assert metal_product.fits(packed) == takes


def test_many_rows_are_left_to_numbers_that_are_unpacked_once(made: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_matrix, "kernels_for", lambda packed: metal_product)
    monkeypatch.setattr("ferrule.engine.weights.stack.kernels_for", lambda packed: metal_product)
    groups = random_groups(LAYOUT["Q4_K"], 16, 512)
    matrix = hold(groups, torch.float32, CPU)
    stack = DeviceStack(groups.layout, matrix.packed.held, 2)
    kernels = metal_product._library(groups.layout, 32, torch.int8, torch.int8, True)
    kernels.launches.clear()
    for rows in (metal_product.MOST_ROWS, metal_product.MOST_ROWS + 1):
        x, numbers = torch.ones(rows, 512), torch.from_numpy(groups.numbers())
        assert torch.allclose(matrix.multiply(x), x @ numbers.T, atol=1e-3)
        experts = torch.arange(2 * rows) // rows
        found = stack.multiply(torch.ones(2 * rows, 512), experts, torch.tensor([rows, 2 * rows]).int())
        assert torch.allclose(found, (numbers @ torch.ones(512)).view(2, 8)[experts], atol=1e-3)
    assert kernels.launches == ["float32_8", "float32_8"]


@pytest.mark.slow
def test_a_kernel_that_is_wrong_or_does_not_compile_is_not_taken(
    made: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packed = hold(random_groups(LAYOUT["Q8_0"], 8, 512), torch.float32, CPU).packed
    compiler = shader_compiler(tmp_path)
    for instead, told in (("scale * sum * 1.5f", "rows of torch.float32 are wrong by 0.5"), ("scale *", "error:")):
        monkeypatch.setattr(
            torch.mps, "compile_shader", lambda text, i=instead: compiler(text.replace("scale * sum", i))
        )
        metal_product._library.cache_clear()
        metal_product._right.cache_clear()
        caplog.clear()
        assert not metal_product.fits(packed)
        assert told in caplog.text
        assert "packed weights are multiplied by torch's operations" in caplog.text
    metal_product._library.cache_clear()
    metal_product._right.cache_clear()


def test_it_is_for_apples_gpus_where_torch_compiles_shaders(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(metal_product, "fits", lambda packed: not seen.append(packed))
    packed = SimpleNamespace(device=torch.device("mps"))
    assert kernels_for(packed) is metal_product  # type: ignore[arg-type]
    monkeypatch.undo()
    monkeypatch.delattr(torch.mps, "compile_shader")
    real = hold(random_groups(LAYOUT["Q8_0"], 8, 512), torch.float32, CPU)
    assert isinstance(real, DeviceMatrix)
    assert not metal_product.fits(real.packed)
