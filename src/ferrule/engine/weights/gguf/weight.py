"""A weight as a GGUF file has it: its parts, the order of its rows, and how its dimensions lie; reading any slice.

Each weight is seen as a stack of matrices (stack, rows, columns), as it is stored: a row is what blocks lie along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.gguf.rows import IN_PLACE, Indices, RowOrder, ranges_of
from ferrule.engine.weights.slicing import Slicing
from ferrule.model import Range
from ferrule.model.gguf import SIZES
from ferrule.model.headers import Stored

Axes = tuple[int, ...]
"""For each dimension of a weight the axis of (stack, rows, columns) that it is."""
Spans = tuple[tuple[Range, ...], tuple[Range, ...], tuple[Range, ...]]
"""Ranges of each axis."""


@dataclass(frozen=True)
class GgufWeight(Weight):
    """``stored``: (stack, rows, columns) of the whole; ``axes``: see `Axes`. ``less``: taken off each number (Gemma's
    norms are stored with one added). ``decays``: stored as -exp of each number."""

    stored: tuple[int, int, int] = (1, 1, 1)
    axes: Axes = (1, 2)
    rows: RowOrder = IN_PLACE
    less: float = 0.0
    decays: bool = False

    @property
    def is_matrix(self) -> bool:
        return super().is_matrix and self.axes == (1, 2)

    def spans(self, cut: Slicing | None) -> Spans:
        """Range that ``cut`` leaves of each axis."""
        found: list[tuple[Range, ...]] = [((0, size),) for size in self.stored]
        if cut is not None:
            found[self.axes[cut.dim]] = cut.ranges
        return found[0], found[1], found[2]

    def placed(self, stack: NDArray[np.float32]) -> NDArray[np.float32]:
        """(stack, rows, columns) in the weight's own dimensions."""
        others = tuple(axis for axis in range(3) if axis not in self.axes)
        moved = stack.transpose(*others, *self.axes)
        return moved.reshape(moved.shape[len(others) :])


def each_row(ranges: tuple[Range, ...]) -> Indices:
    """The indices that ``ranges`` hold, end to end."""
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges] or [np.arange(0)])


def blocks_of(part: Stored, source: StoredTensors) -> NDArray[np.uint8]:
    """The bytes of stored tensor ``part`` as (stack, rows, bytes of a row); only those that are used are read."""
    return source.array(part.name).reshape(byte_shape(part))


def read_rows(
    weight: GgufWeight, rows: Indices, columns: Range, source: StoredTensors, index: int
) -> Iterator[tuple[Stored, NDArray[np.bool_] | None, NDArray[np.uint8]]]:
    """``rows`` of matrix ``index``, as they are stored: for each part that has some of them which those are (None:
    all), and their blocks (rows, bytes) that hold ``columns``."""
    where, row = weight.rows.places(rows)
    for number, part in enumerate(weight.parts.values()):
        numbers, size = SIZES[part.dtype]
        first, last = columns[0] // numbers * size, -(-columns[1] // numbers) * size
        chosen = where == number
        some = row[chosen]
        if not len(some):
            continue
        matrix = blocks_of(part, source)[index]
        low, high = int(some[0]), int(some[-1]) + 1
        together = high - low == len(some) and bool((np.diff(some) == 1).all())
        found = matrix[low:high, first:last] if together else matrix[some, first:last]
        yield part, None if chosen.all() else chosen, found


def needs(weight: Weight, cut: Slicing | None, stored: Mapping[str, Stored]) -> list[tuple[str, Slicing | None]]:
    """The parts that ``cut`` reads, as slices of the bytes of the ``stored`` tensors (`byte_shape`)."""
    if cut is None or not isinstance(weight, GgufWeight):
        return [(part.name, None) for part in weight.parts.values()]
    stack, rows, columns = weight.spans(cut)
    found: list[tuple[str, Slicing | None]] = []
    where, row = weight.rows.places(each_row(rows))
    for number, part in enumerate(weight.parts.values()):
        if part.shape != stored[part.name].shape:  # seen in another shape: a bias
            found.append((part.name, None))
            continue
        numbers, size = SIZES[part.dtype]
        whole = byte_shape(part)
        match weight.axes[cut.dim]:
            case 0:
                found.append((part.name, Slicing(0, whole[0], stack)))
            case 1:
                ranges = ranges_of(row[where == number])
                if ranges:
                    found.append((part.name, Slicing(1, whole[1], ranges)))
            case _:
                within = tuple((start // numbers * size, -(-stop // numbers) * size) for start, stop in columns)
                found.append((part.name, Slicing(2, whole[2], within)))
    return found


def byte_shape(part: Stored) -> tuple[int, int, int]:
    """(stack, rows, bytes of a row) of a stored tensor; one of a single dimension has a number in each row."""
    numbers, size = SIZES[part.dtype]
    match part.shape:
        case ():
            return 1, 1, size
        case (count,):
            return (1, count, size) if numbers == 1 else (1, 1, count // numbers * size)
    stack = int(np.prod(part.shape[:-2]))
    return stack, part.shape[-2], part.shape[-1] // numbers * size
