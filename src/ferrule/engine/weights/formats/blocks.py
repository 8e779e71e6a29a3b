"""Codes of one byte with scales for blocks of rows and columns: what FP8 and int8 formats share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import pick
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import split_groups
from ferrule.engine.weights.formats.parts import matrix_of, misfit, numbers
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.model import Range
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout

FLOAT8 = ("F8_E4M3", "F8_E5M2")

Block = tuple[int, int]
"""Rows and columns that share a scale."""


def block_of(shape: tuple[int, ...], scales: Stored, told: Block | None) -> Block:
    """The block that each of ``scales`` is for, of a matrix of ``shape``; the last ones may be smaller. ``told``: by
    config.json; a shape that does not fit it may be of equal blocks. Raises `ModelError` where neither fits."""
    stack = shape[:-2]
    if len(scales.shape) > len(shape) or (stack and (len(scales.shape) != 3 or scales.shape[:1] != stack)):
        raise misfit(scales, f"{len(shape)} dimensions as of {list(shape)}")
    grid = scales.shape[-2:]
    if len(grid) < 2:  # one for the tensor, or one for each row
        grid = (grid[0], 1) if grid else (1, 1)
    found = []
    for axis, (length, count) in enumerate(zip(shape[-2:], grid, strict=True)):
        size = told[axis] if told else 0
        if size > 0 and count == -(-length // size):
            found.append(size)
        elif count and length % count == 0:
            found.append(length // count)
        else:
            raise misfit(scales, f"[{shape[-2]}, 1], [1] or one scale for each block of {told or 'equal size'}")
    return found[0], found[1]


def in_rows(array: NDArray[np.float32], rows: tuple[Range, ...], block: int) -> NDArray[np.float32]:
    """For each of ``rows`` what ``array`` holds for its block of rows: (rows, groups)."""
    owners = np.concatenate([np.arange(start, stop) for start, stop in rows]) // block
    found: NDArray[np.float32] = array[owners]
    return found


def grid_of(weight: Weight, role: str, source: StoredTensors, index: int = 0) -> NDArray[np.float32]:
    """Scales or zero points as (blocks of rows, blocks of columns), of a stack those of matrix ``index``."""
    values = numbers(matrix_of(weight, role, source, index), weight.parts[role])
    return values if values.ndim == 2 else values.reshape(-1, 1)


def byte_groups(
    layout: GroupLayout, block: Block, weight: Weight, part: Rectangle, source: StoredTensors, index: int
) -> GroupedMatrix:
    """``part`` of a weight whose part ``weight`` has a byte per number, and ``scale`` and perhaps ``zero`` a grid of
    blocks. Signed integers become codes by adding 128, which the layout's zero is to be where there are no offsets."""
    octets = pick(pick(matrix_of(weight, "weight", source, index), part.rows, 0), part.columns, 1)
    codes: NDArray[np.uint8] = np.ascontiguousarray(octets).view(np.uint8)
    if layout.values == "integer":
        codes = codes ^ np.uint8(128)
    grid = grid_of(weight, "scale", source, index)
    offsets = None
    if layout.offsets:
        offsets = in_rows(-(grid_of(weight, "zero", source, index) + 128) * grid, part.rows, block[0])
        offsets, _ = split_groups(offsets, block[1], part.columns)
    scales, size = split_groups(in_rows(grid, part.rows, block[0]), block[1], part.columns)
    return GroupedMatrix(replace(layout, group=size), codes, scales, offsets)
