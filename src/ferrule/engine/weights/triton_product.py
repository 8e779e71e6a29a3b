"""Products of packed weights on GPUs, in Triton: one kernel for all formats of groups, for NVIDIA, AMD and Intel.

A program computes some outputs of some rows; where there is a stack of matrices, of rows that take the same one. It
unpacks codes, and applies scales and offsets in registers, in the form of `device_matrix.Held`; what is multiplied has
the type of the activations, sums are float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ferrule.engine.weights.stack_blocks import stack_blocks
from ferrule.model.packing import SUPER

if TYPE_CHECKING:
    from ferrule.engine.weights.device_codes import DeviceCodes

NO_OFFSETS, OFFSETS, ZERO_POINTS = range(3)
NAME = "Triton"
MOST_ROWS = math.inf
"""Of each matrix, for which it is the way to multiply: all."""
_LEAST_ROWS = 16
"""Of a block: the least that matrix units take."""


@triton.jit  # type: ignore[untyped-decorator]
def _grouped(values, scales, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """(BLOCK_N, BLOCK_K): each group of columns its own of ``scales`` (BLOCK_N, GROUPS)."""
    shape: tl.constexpr = (BLOCK_N, GROUPS, BLOCK_K // GROUPS)
    return tl.broadcast_to(scales[:, :, None], shape).reshape(BLOCK_N, BLOCK_K).to(values.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def packed_product(  # type: ignore[no-untyped-def]
    x, codes, table, scales, offsets, supers, super_offsets, y, blocks, rows, outputs, columns,
    FOUR_BITS: tl.constexpr, TABLE: tl.constexpr, ZERO: tl.constexpr, KIND: tl.constexpr, NESTED: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr, SUPER_GROUP: tl.constexpr, STACK: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """``y`` (rows, outputs) = ``x`` (rows, columns) times the transposed matrix of ``codes``; with ``STACK``, that of
    a stack which ``blocks`` (blocks, 3) tells for each block of rows, with its first row and the end of its rows."""
    first = tl.program_id(1) * BLOCK_M
    end = rows
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = n[:, None]
    if STACK:
        told = blocks + tl.program_id(1) * 3
        row = row + tl.load(told).to(tl.int64) * outputs
        first = tl.load(told + 1)
        end = tl.load(told + 2)
        if first >= end:
            return
    m = first + tl.arange(0, BLOCK_M)
    here_m = m[:, None] < end
    here_n = n[:, None] < outputs
    groups: tl.constexpr = BLOCK_K // GROUP if BLOCK_K > GROUP else 1
    in_row = tl.cdiv(columns, GROUP)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, columns, BLOCK_K):
        if FOUR_BITS:
            pair = start // 2 + tl.arange(0, BLOCK_K // 2)
            inside = here_n & (pair[None, :] < columns // 2)
            packed = tl.load(codes + row * (columns // 2) + pair[None, :], mask=inside, other=0)
            code = tl.join(packed & 15, packed >> 4).reshape(BLOCK_N, BLOCK_K)
        else:
            k = start + tl.arange(0, BLOCK_K)
            inside = here_n & (k[None, :] < columns)
            code = tl.load(codes + row * columns + k[None, :], mask=inside, other=0)
        values = tl.load(table + code.to(tl.int32)) if TABLE else code.to(tl.float32) - ZERO
        g = start // GROUP + tl.arange(0, groups)
        there = here_n & (g[None, :] < in_row)
        at = row * in_row + g[None, :]
        scale = tl.load(scales + at, mask=there, other=0).to(tl.float32)
        above = row * (columns // SUPER_GROUP) + g[None, :] * GROUP // SUPER_GROUP
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
_KEY = ["outputs", "columns", "BLOCK_M", "GROUP", "KIND", "FOUR_BITS", "NESTED", "STACK"]
_tuned: Any = None


def fits(packed: DeviceCodes) -> bool:
    """Whether the kernel takes ``packed``: groups are a power of two wide from 16 on, or whole rows."""
    group = _group(packed)
    return group == packed.columns or (group >= 16 and group & (group - 1) == 0)


def multiply(packed: DeviceCodes, x: Tensor) -> Tensor:
    """``x`` (..., columns as they are stored) times the transposed matrix: (..., outputs), of the type of ``x``."""
    outputs = packed.held.codes.shape[0]
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    rows = flat.shape[0]
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows and outputs:
        block = _block(rows)
        _launch(packed, flat, y, triton.cdiv(rows, block), block, None)
    return y.reshape(*x.shape[:-1], outputs)


def multiply_stack(packed: DeviceCodes, x: Tensor, ends: Tensor) -> Tensor:
    """``x`` (rows, columns as they are stored), of which the rows before ``ends`` (matrices,) that are behind the ones
    of the matrix before take each matrix of the stack: (rows, outputs). What is behind the last of ``ends`` is not
    computed."""
    matrices, rows = ends.shape[0], x.shape[0]
    y = torch.empty((rows, packed.held.codes.shape[0] // matrices), dtype=x.dtype, device=x.device)
    if y.numel():
        block = _block(triton.cdiv(rows, min(rows, matrices)))
        blocks = stack_blocks(ends, rows, block)
        _launch(packed, x.contiguous(), y, blocks.shape[0], block, blocks)
    return y


def _block(rows: int) -> int:
    block: int = triton.next_power_of_2(rows)
    return min(64, max(_LEAST_ROWS, block))


def _launch(packed: DeviceCodes, x: Tensor, y: Tensor, blocks: int, block: int, told: Tensor | None) -> None:
    global _tuned
    held, layout = packed.held, packed.layout
    rows, outputs = y.shape
    none = held.codes  # in the place of what is not read
    kind = NO_OFFSETS if held.offsets is None else ZERO_POINTS if layout.zero_points else OFFSETS
    given = (
        x, held.codes, none if packed.values is None else packed.values, held.scales,
        none if held.offsets is None else held.offsets, none if held.supers is None else held.supers,
        none if held.super_offsets is None else held.super_offsets, y, none if told is None else told,
        rows, outputs, packed.columns,
    )  # fmt: skip
    constants = {
        "FOUR_BITS": layout.bits <= 4, "TABLE": packed.values is not None, "ZERO": layout.zero, "KIND": kind,
        "NESTED": held.supers is not None, "GROUP": _group(packed), "SUPER_GROUP": SUPER, "STACK": told is not None,
        "BLOCK_M": block,
    }  # fmt: skip

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(outputs, chosen["BLOCK_N"]), blocks

    if triton.knobs.runtime.interpret:
        packed_product[grid](*given, **constants, BLOCK_N=32, BLOCK_K=64)
        return
    if _tuned is None:
        _tuned = triton.autotune(configs=_CONFIGS, key=_KEY, cache_results=True)(packed_product)
    _tuned[grid](*given, **constants)


def _group(packed: DeviceCodes) -> int:
    return packed.columns // packed.held.scales.shape[1]
