"""Packed matrices multiply as the numbers that they stand for, with every instruction set of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ferrule._native import Compute, Matrix, kernel_instructions
from ferrule.engine.selftest.device_check import random_groups
from ferrule.engine.weights.groups import GroupedMatrix
from ferrule.engine.weights.matrix import CODES, SCALES, pack_numbers, padded
from ferrule.model.packing import GroupLayout

LAYOUTS = [
    GroupLayout(2, 64, "bf16", offsets=True),
    GroupLayout(3, 16, "f16", zero=4),
    GroupLayout(4, 32, "f16", zero=8),
    GroupLayout(4, 128, "f32", offsets=True),
    GroupLayout(5, 32, "f16", offsets=True),
    GroupLayout(4, 64, "f16", offsets=True, zero_points=True),
    GroupLayout(2, 16, "bf16", offsets=True, zero_points=True),
    GroupLayout(6, 16, "f16", zero=32),
    GroupLayout(8, 32, "f16", zero=128),
    GroupLayout(4, 32, "e8m0", "fp4"),
    GroupLayout(4, 16, "f32", "fp4"),
    GroupLayout(4, 32, "f16", "iq4nl"),
    GroupLayout(4, 64, "f32", "nf4"),
    GroupLayout(8, 128, "f32", "e4m3"),
    GroupLayout(8, 128, "f32", "e5m2"),
]
ROUNDED = 0.012
"""Relative error of a product whose activations are rounded to 8 bits, in groups of 32."""


def packed(groups: GroupedMatrix) -> Matrix:
    layout, (rows, columns) = groups.layout, groups.codes.shape
    kind, scale = CODES.index(layout.values), SCALES.index(layout.scale)
    offsets = (1 + layout.zero_points) if layout.offsets else 0
    matrix = Matrix(rows, columns, kind, layout.bits, scale, offsets, layout.zero, layout.group)
    at = 0 if groups.offsets is None else groups.offsets.ctypes.data
    codes = groups.codes
    matrix.pack_groups(0, rows, codes.ctypes.data, *codes.strides, groups.scales.ctypes.data, at)
    return matrix


def product(matrix: Matrix, rows: int, x: NDArray[np.float32], *, exact: bool, threads: int = 1) -> NDArray[np.float32]:
    y = np.full((len(x), padded(rows)), np.nan, np.float32)
    Compute(threads).multiply([matrix], x.ctypes.data, len(x), x.shape[1], y.ctypes.data, y.shape[1], exact)
    return y[:, :rows]


def relative(found: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_products_of_groups(layout: GroupLayout) -> None:
    for rows, columns in ((50, 384), (16, 128), (33, layout.group * 2)):
        groups = random_groups(layout, rows, columns)
        matrix = packed(groups)
        for count in (1, 2, 3, 7, 13):
            x = np.random.default_rng(count).standard_normal((count, columns)).astype(np.float32)
            wanted = x.astype(np.float64) @ groups.numbers().T.astype(np.float64)
            assert relative(product(matrix, rows, x, exact=True), wanted) < 3e-6
            small = layout.values in ("integer", "fp4", "iq4nl")
            assert relative(product(matrix, rows, x, exact=False), wanted) < (2 * ROUNDED if small else 3e-6)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float16, 1e-6), (torch.bfloat16, 5e-3)])
def test_products_of_plain_numbers(dtype: torch.dtype, most: float) -> None:
    for rows, columns in ((50, 384), (16, 33), (7, 96)):
        numbers = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)
        matrix = pack_numbers(numbers, dtype)
        for count in (1, 2, 5, 13, 30):
            x = np.random.default_rng(count).standard_normal((count, columns)).astype(np.float32)
            wanted = x.astype(np.float64) @ numbers.double().numpy().T
            assert relative(product(matrix.matrix, rows, x, exact=True), wanted) < most


def test_a_row_gives_the_same_bits_alone_and_among_others() -> None:
    for layout in LAYOUTS:
        groups = random_groups(layout, 80, layout.group * 4)
        x = np.random.default_rng(5).standard_normal((14, layout.group * 4)).astype(np.float32)
        for exact in (True, False):
            together = product(packed(groups), 80, x, exact=exact)
            for row in range(len(x)):
                alone = product(packed(groups), 80, x[row : row + 1].copy(), exact=exact)
                assert np.array_equal(alone[0], together[row])


def test_threads_share_rows_and_change_no_bit() -> None:
    numbers = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    matrix = pack_numbers(numbers, torch.float32).matrix
    x = np.random.default_rng(5).standard_normal((9, 64)).astype(np.float32)
    assert np.array_equal(product(matrix, 200, x, exact=True), product(matrix, 200, x, exact=True, threads=4))


def test_callers_that_share_threads_take_turns() -> None:
    shared, callers = Compute(1), 4
    matrix = pack_numbers(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)), torch.float32).matrix
    x = np.random.default_rng(5).standard_normal((callers, 24, 64)).astype(np.float32)
    wanted = [product(matrix, 64, each, exact=True) for each in x]

    def multiply(caller: int) -> bool:
        y = np.empty((24, 64), np.float32)
        for _ in range(2000):
            shared.multiply([matrix], x[caller].ctypes.data, 24, 64, y.ctypes.data, 64, True)
            if not np.array_equal(y, wanted[caller]):
                return False
        return True

    with ThreadPoolExecutor(callers) as pool:
        assert all(pool.map(multiply, range(callers)))


@pytest.mark.parametrize(
    "instructions", ["dotprod", *(pytest.param(each, marks=pytest.mark.slow) for each in ("base", "avx2", "avx512"))]
)
def test_older_instruction_sets(instructions: str) -> None:
    env = os.environ | {"FERRULE_KERNELS": instructions}
    ask = [sys.executable, "-c", "from ferrule._native import kernel_instructions; print(kernel_instructions())"]
    chosen = subprocess.run(ask, env=env, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    if chosen != instructions:
        pytest.skip(f"this machine has {kernel_instructions()}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__)), "-k", "products"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="a group has 16 columns or a multiple of 32"):
        Matrix(16, 48, CODES.index("integer"), 4, 0, 0, 8, 24)
    with pytest.raises(ValueError, match="codes have 2, 3, 4, 5, 6 or 8 bits"):
        Matrix(16, 32, CODES.index("integer"), 7, 0, 0, 8, 32)
