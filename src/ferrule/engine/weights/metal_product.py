"""Products of packed weights on Apple's GPUs, in Metal Shading Language (``packed_product.metal``) through torch.

torch compiles the text at run time (`torch.mps.compile_shader`), once for each form in which matrices are held. The
kernel has not run on a Mac yet, so it is taken only where products of random codes are right on the device itself.
"""

from __future__ import annotations

import logging
import math
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from ferrule.engine.weights.device_codes import TRIAL_ERRORS, DeviceCodes, Held, as_held
from ferrule.engine.weights.stack_blocks import stack_blocks
from ferrule.model.packing import SUPER, GroupLayout

_log = logging.getLogger(__name__)

NAME = "Metal"
MOST_ROWS = 32
"""Of each matrix, for which it is the way to multiply: all codes are read once for 8 rows. More rows share numbers that
are unpacked once."""
_CHUNK, _OUTPUTS, _SIMDGROUPS, _LANES = 8, 4, 2, 32
"""As in the Metal source."""
_BLOCKS = (1, 4, 8)
"""Rows of a block that there are kernels for."""
_NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat", torch.int8: "int8_t",
          torch.uint8: "uint8_t"}  # fmt: skip
_PROBE = (12, 3)
"""Outputs of the products that are tried, and their columns in multiples of `SUPER` and of the group."""


def fits(packed: DeviceCodes) -> bool:
    """Whether the kernel takes ``packed``, and is right on its device: this waits for that when a form is new."""
    group = _group(packed)
    if not hasattr(torch.mps, "compile_shader") or (group and group % _CHUNK):
        return False
    types = tuple(None if each is None else each.dtype for each in packed.held.parts())
    return _right(packed.layout, group, types, packed.device)


def multiply(packed: DeviceCodes, x: Tensor) -> Tensor:
    """``x`` (..., columns as they are stored) times the transposed matrix: (..., outputs), of the type of ``x``."""
    outputs = packed.held.codes.shape[0]
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    y = torch.empty((flat.shape[0], outputs), dtype=x.dtype, device=x.device)
    if y.numel():
        block = _block(flat.shape[0])
        _launch(packed, flat, y, -(-flat.shape[0] // block), block, None)
    return y.reshape(*x.shape[:-1], outputs)


def multiply_stack(packed: DeviceCodes, x: Tensor, ends: Tensor) -> Tensor:
    """As `triton_product.multiply_stack`."""
    matrices, rows = ends.shape[0], x.shape[0]
    y = torch.empty((rows, packed.held.codes.shape[0] // matrices), dtype=x.dtype, device=x.device)
    if y.numel():
        block = _block(-(-rows // min(rows, matrices)))
        blocks = stack_blocks(ends, rows, block)
        _launch(packed, x.contiguous(), y, blocks.shape[0], block, blocks)
    return y


def _block(rows: int) -> int:
    return next((block for block in _BLOCKS if rows <= block), _BLOCKS[-1])


def _launch(packed: DeviceCodes, x: Tensor, y: Tensor, blocks: int, block: int, told: Tensor | None) -> None:
    held = packed.held
    none = held.codes  # in the place of what is not read
    offsets = None if held.offsets is None else held.offsets.dtype
    library = _library(packed.layout, _group(packed), held.scales.dtype, offsets, held.supers is not None)
    kernel = getattr(library, f"{str(x.dtype).removeprefix('torch.')}_{block}")
    across = -(-y.shape[1] // (_OUTPUTS * _SIMDGROUPS))
    parts = [packed.values, held.scales, held.offsets, held.supers, held.super_offsets, y, told]
    kernel(
        x, held.codes, *(none if each is None else each for each in parts), *y.shape, packed.columns,
        int(told is not None), threads=(across * _SIMDGROUPS * _LANES, blocks), group_size=(_SIMDGROUPS * _LANES, 1),
    )  # fmt: skip


@cache
def _library(layout: GroupLayout, group: int, scale: torch.dtype, offset: torch.dtype | None, nested: bool) -> Any:
    """Kernels for this form: a name for each type of activations and rows of a block."""
    kind = 0 if offset is None else 2 if layout.zero_points else 1
    macros = {
        "FOUR_BITS": int(layout.bits <= 4), "TABLE": int(layout.values != "integer"), "ZERO": layout.zero,
        "GROUP": group, "SUPER_GROUP": SUPER, "KIND": kind, "NESTED": int(nested), "SCALE": _NAMES[scale],
        "OFFSET": _NAMES[offset or scale],
    }  # fmt: skip
    head = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    body = files("ferrule.engine.weights").joinpath("packed_product.metal").read_text(encoding="utf-8")
    return torch.mps.compile_shader(f"#include <metal_stdlib>\n{head}{body}")


@cache
def _right(layout: GroupLayout, group: int, types: tuple[torch.dtype | None, ...], device: torch.device) -> bool:
    """Whether products of random codes of this form are those of their numbers."""
    try:
        packed = DeviceCodes(layout, _random(layout, group, types, device))
        numbers = packed.numbers(lambda part: part)
        for dtype, allowed in TRIAL_ERRORS.items():
            for rows in _BLOCKS:
                x = torch.randn(rows, packed.columns, generator=torch.Generator().manual_seed(rows)).to(device, dtype)
                expected = x.float() @ numbers.T
                error = float((multiply(packed, x).float() - expected).abs().max() / expected.abs().max())
                if not error < allowed:
                    raise ArithmeticError(f"{rows} rows of {dtype} are wrong by {error:.2g}")
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise whatever they like
        _log.warning("%s: packed weights are multiplied by torch's operations, as Metal's fails: %s", device, error)
        return False
    return True


def _random(layout: GroupLayout, group: int, types: tuple[torch.dtype | None, ...], device: torch.device) -> Held:
    """Parts of these ``types``, as `Held` has them, of a small matrix; all numbers are finite."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = _PROBE[0], _PROBE[1] * math.lcm(SUPER, group or SUPER)
    wide = (rows, columns // (group or columns)), (rows, columns // SUPER)
    codes = torch.randint(0, 1 << layout.bits, (rows, columns), generator=generator, dtype=torch.uint8)
    if layout.values in ("e4m3", "e5m2"):
        codes &= 0xC7  # of a size whose sums float16 can hold
    if layout.bits <= 4:
        codes = codes[:, ::2] + codes[:, 1::2] * 16
    found: list[Tensor | None] = [codes]
    for dtype, shape in zip(types[1:], (wide[0], wide[0], wide[1], wide[1]), strict=True):
        if dtype is None:
            found.append(None)
        elif dtype.is_floating_point:
            found.append(torch.exp2(torch.randint(-6, 0, shape, generator=generator).float()).to(dtype))
        else:
            found.append(torch.randint(1, 16, shape, generator=generator, dtype=dtype))
    return as_held([None if each is None else each.to(device) for each in found])


def _group(packed: DeviceCodes) -> int:
    """Columns that share a scale; 0: all of a row."""
    groups = packed.held.scales.shape[1]
    return 0 if groups == 1 else packed.columns // groups
