"""Products of packed weights on GPUs, in Triton: one kernel for all formats of groups, for NVIDIA, AMD and Intel.

A program computes some outputs of some rows. It unpacks codes, and applies scales and offsets in registers, in the form
of `device_matrix.Held`; what is multiplied has the type of the activations, sums are float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ferrule.model.packing import SUPER

if TYPE_CHECKING:
    from ferrule.engine.weights.device_matrix import DeviceMatrix

NO_OFFSETS, OFFSETS, ZERO_POINTS = range(3)
_LEAST_ROWS = 16
"""Of a block: the least that matrix units take."""


@triton.jit  # type: ignore[untyped-decorator]
def _grouped(values, scales, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """(BLOCK_N, BLOCK_K): each group of columns its own of ``scales`` (BLOCK_N, GROUPS)."""
    shape: tl.constexpr = (BLOCK_N, GROUPS, BLOCK_K // GROUPS)
    return tl.broadcast_to(scales[:, :, None], shape).reshape(BLOCK_N, BLOCK_K).to(values.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def packed_product(  # type: ignore[no-untyped-def]
    x, codes, table, scales, offsets, supers, super_offsets, y, rows, outputs, columns,
    FOUR_BITS: tl.constexpr, TABLE: tl.constexpr, ZERO: tl.constexpr, KIND: tl.constexpr, NESTED: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr, SUPER_GROUP: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """``y`` (rows, outputs) = ``x`` (rows, columns) times the transposed matrix of ``codes``."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    here_m = m[:, None] < rows
    here_n = n[:, None] < outputs
    groups: tl.constexpr = BLOCK_K // GROUP if BLOCK_K > GROUP else 1
    in_row = tl.cdiv(columns, GROUP)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, columns, BLOCK_K):
        if FOUR_BITS:
            pair = start // 2 + tl.arange(0, BLOCK_K // 2)
            inside = here_n & (pair[None, :] < columns // 2)
            packed = tl.load(codes + n[:, None] * (columns // 2) + pair[None, :], mask=inside, other=0)
            code = tl.join(packed & 15, packed >> 4).reshape(BLOCK_N, BLOCK_K)
        else:
            k = start + tl.arange(0, BLOCK_K)
            inside = here_n & (k[None, :] < columns)
            code = tl.load(codes + n[:, None] * columns + k[None, :], mask=inside, other=0)
        values = tl.load(table + code.to(tl.int32)) if TABLE else code.to(tl.float32) - ZERO
        g = start // GROUP + tl.arange(0, groups)
        there = here_n & (g[None, :] < in_row)
        at = n[:, None] * in_row + g[None, :]
        scale = tl.load(scales + at, mask=there, other=0).to(tl.float32)
        above = n[:, None] * (columns // SUPER_GROUP) + g[None, :] * GROUP // SUPER_GROUP
        if NESTED:
            scale = scale * tl.load(supers + above, mask=there, other=0)
        values = values * _grouped(values, scale, BLOCK_N, BLOCK_K, groups)
        if KIND == 1:
            offset = tl.load(offsets + at, mask=there, other=0).to(tl.float32)
            if NESTED:
                offset = offset * tl.load(super_offsets + above, mask=there, other=0)
            values = values + _grouped(values, offset, BLOCK_N, BLOCK_K, groups)
        elif KIND == 2:
            offset = tl.load(offsets + at, mask=there, other=0).to(tl.float32) * scale
            values = values - _grouped(values, offset, BLOCK_N, BLOCK_K, groups)
        column = start + tl.arange(0, BLOCK_K)
        given = tl.load(x + m[:, None] * columns + column[None, :], mask=here_m & (column[None, :] < columns), other=0)
        total = tl.dot(given, tl.trans(values.to(given.dtype)), total, input_precision="ieee")
    tl.store(y + m[:, None] * outputs + n[None, :], total.to(y.dtype.element_ty), mask=here_m & (n[None, :] < outputs))


_CONFIGS = [
    triton.Config({"BLOCK_N": outputs, "BLOCK_K": columns}, num_warps=warps, num_stages=stages)
    for outputs, columns, warps, stages in (
        (16, 256, 2, 4), (32, 128, 4, 4), (32, 256, 4, 3), (64, 64, 4, 4), (64, 128, 4, 3), (128, 64, 8, 3),
    )
]  # fmt: skip
_KEY = ["outputs", "columns", "BLOCK_M", "GROUP", "KIND", "FOUR_BITS", "NESTED"]
_tuned: Any = None


def fits(matrix: DeviceMatrix) -> bool:
    """Whether the kernel takes ``matrix``: groups are a power of two wide from 16 on, or whole rows."""
    group = _group(matrix)
    return group == matrix.columns or (group >= 16 and group & (group - 1) == 0)


def multiply(matrix: DeviceMatrix, x: Tensor) -> Tensor:
    """``x`` (..., columns as they are stored) times the transposed matrix: (..., outputs), of the type of ``x``."""
    outputs = matrix.shape[0]
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    rows, columns = flat.shape
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows and outputs:
        block = min(64, max(_LEAST_ROWS, triton.next_power_of_2(rows)))
        _launch(flat, y, rows, outputs, columns, block, matrix)
    return y.reshape(*x.shape[:-1], outputs)


def _launch(flat: Tensor, y: Tensor, rows: int, outputs: int, columns: int, block: int, matrix: DeviceMatrix) -> None:
    global _tuned
    held, layout = matrix.held, matrix.layout
    none = held.codes  # in the place of what is not read
    kind = NO_OFFSETS if held.offsets is None else ZERO_POINTS if layout.zero_points else OFFSETS
    given = (
        flat, held.codes, none if matrix.values is None else matrix.values, held.scales,
        none if held.offsets is None else held.offsets, none if held.supers is None else held.supers,
        none if held.super_offsets is None else held.super_offsets, y, rows, outputs, columns,
    )  # fmt: skip
    constants = {
        "FOUR_BITS": layout.bits <= 4, "TABLE": matrix.values is not None, "ZERO": layout.zero, "KIND": kind,
        "NESTED": held.supers is not None, "GROUP": _group(matrix), "SUPER_GROUP": SUPER, "BLOCK_M": block,
    }  # fmt: skip

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(outputs, chosen["BLOCK_N"]), triton.cdiv(rows, block)

    if triton.knobs.runtime.interpret:
        packed_product[grid](*given, **constants, BLOCK_N=32, BLOCK_K=64)
        return
    if _tuned is None:
        _tuned = triton.autotune(configs=_CONFIGS, key=_KEY, cache_results=True)(packed_product)
    _tuned[grid](*given, **constants)


def _group(matrix: DeviceMatrix) -> int:
    return matrix.columns // matrix.held.scales.shape[1]
