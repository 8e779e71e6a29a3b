"""Matrices as a rank multiplies by them: packed by the native library, from groups of codes or from plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ferrule._native import Compute, Matrix
from ferrule.engine.weights.bits import joined
from ferrule.engine.weights.formats.format import ReadsGroups, StoredTensors, Weight
from ferrule.engine.weights.formats.packed import Packed
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle, rectangle, steps
from ferrule.engine.weights.slicing import Slicing
from ferrule.model import Range
from ferrule.model.packing import ORDER_BYTES, PACKED_VALUES, fitting_group, padded

CODES = ("bf16", "f16", "f32", *PACKED_VALUES)
SCALES = ("f16", "bf16", "f32", "e8m0", "nested")
"""In the order of the native library's numbers."""
PLAIN = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


MOST_AT_ONCE = 4
"""Steps that are unpacked at the same time: each takes a few megabytes."""
Result = TypeVar("Result")


@cache
def compute(threads: int) -> Compute:
    """The threads of this process by which torch's modules multiply packed weights."""
    return Compute(threads)


class PackedMatrix(Packed):
    """A packed weight in a native `Matrix`. ``dtype``: of products; float32 ones are exact, others take activations as
    8-bit integers where the weight's codes are small integers. ``order_bytes``: of its columns' order."""

    def __init__(self, matrix: Matrix, shape: tuple[int, int], dtype: torch.dtype, order_bytes: int = 0) -> None:
        self.matrix, self.dtype = matrix, dtype
        self.shape, self.device, self.bytes = torch.Size(shape), torch.device("cpu"), matrix.bytes + order_bytes

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float().contiguous()
        result = torch.empty(rows.shape[0], padded(self.shape[0]))
        exact = self.dtype is torch.float32
        threads = compute(torch.get_num_threads())
        given, made = rows.data_ptr(), result.data_ptr()
        threads.multiply([self.matrix], given, rows.shape[0], rows.shape[1], made, result.shape[1], exact)
        return result[:, : self.shape[0]].to(x.dtype).reshape(*x.shape[:-1], self.shape[0])


@dataclass(frozen=True)
class Piece:
    """The slice ``cut`` of a stored weight, or of its matrix ``index`` where it is a stack: rows are outputs, as they
    are multiplied by. ``cut`` is of the matrix as the module has it; its padding is left out. ``turned``: what is
    stored as its rows are inputs."""

    weight: Weight
    cut: Slicing | None = None
    index: int = 0
    turned: bool = False

    @property
    def part(self) -> Rectangle:
        cut = self.cut
        if cut is not None and self.weight.transposed:
            cut = Slicing(1 - cut.dim, cut.of, cut.ranges)
        stored = rectangle(self.weight.matrix, cut)
        return Rectangle(stored.columns, stored.rows) if self.turned else stored

    def groups(self, part: Rectangle, source: StoredTensors) -> GroupedMatrix | None:
        """``part`` as groups that can be multiplied by; None where it is to be held as numbers."""
        if self.turned or not isinstance(self.weight.format, ReadsGroups):
            return None
        return fitting(self.weight.format.groups(self.weight, part, source, self.index))

    def numbers(self, part: Rectangle, source: StoredTensors) -> Tensor:
        """``part`` as numbers: (rows, columns)."""
        if self.turned:
            stored = Rectangle(part.columns, part.rows)
            return self.weight.format.numbers(self.weight, stored, source, self.index).T
        return self.weight.format.numbers(self.weight, part, source, self.index)


def pack(pieces: Sequence[Piece], source: StoredTensors, dtype: torch.dtype, pad: int = 0) -> PackedMatrix:
    """The matrix whose rows are those of ``pieces``, one after the other, and ``pad`` ones of zeros: as it is stored
    where that can be multiplied, else as numbers of ``dtype``."""
    rows = sum(piece.part.shape[0] for piece in pieces)
    columns = pieces[0].part.shape[1]
    spans = list(steps(Rectangle(((0, rows),), ((0, columns),))))
    first = _groups_of(pieces, spans[0], source) if spans else None
    if first is None:
        return _pack_as_numbers(pieces, source, dtype, (rows, columns), pad)
    matrix = _matrix_of(rows + pad, first[0])
    _pack_groups(matrix, spans[0], first)

    def packed(span: Range) -> bool:
        groups = _groups_of(pieces, span, source, first[0])
        if groups is not None:
            _pack_groups(matrix, span, groups)
        return groups is not None

    if not all(_at_once(packed, spans[1:])):
        return _pack_as_numbers(pieces, source, dtype, (rows, columns), pad)
    order = first[0].order
    return PackedMatrix(matrix, (rows + pad, columns), dtype, 0 if order is None else order.size * ORDER_BYTES)


def _groups_of(
    pieces: Sequence[Piece], span: Range, source: StoredTensors, like: GroupedMatrix | None = None
) -> list[GroupedMatrix] | None:
    """Rows ``span`` of all ``pieces`` together as groups; None where these and ``like`` cannot be in one matrix."""
    found = [piece.groups(part, source) for piece, part in _rows_of(pieces, *span)]
    groups = [each for each in found if each is not None]
    if len(groups) < len(found) or not alike([like, *groups] if like is not None else groups):
        return None
    return groups


def _pack_groups(matrix: Matrix, span: Range, groups: Sequence[GroupedMatrix]) -> None:
    codes = joined([each.codes for each in groups])
    held = [
        _floats([getattr(each, name) for each in groups]) for name in ("scales", "offsets", "supers", "super_offsets")
    ]
    addresses = [0 if each is None else each.ctypes.data for each in held]
    matrix.pack_groups(span[0], span[1] - span[0], codes.ctypes.data, *codes.strides, *addresses)


def _pack_as_numbers(
    pieces: Sequence[Piece], source: StoredTensors, dtype: torch.dtype, shape: tuple[int, int], pad: int
) -> PackedMatrix:
    """``shape``: without the padding."""
    rows, columns = shape
    matrix = _plain_matrix(rows + pad, columns, dtype)

    def packed(span: Range) -> None:
        parts = [piece.numbers(part, source).to(dtype) for piece, part in _rows_of(pieces, *span)]
        some = (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous()
        matrix.pack_plain(span[0], span[1] - span[0], some.data_ptr(), columns)

    list(_at_once(packed, list(steps(Rectangle(((0, rows),), ((0, columns),))))))
    return PackedMatrix(matrix, (rows + pad, columns), dtype)


def _at_once(do: Callable[[Range], Result], spans: Sequence[Range]) -> Iterator[Result]:
    """``do`` for each of ``spans``, several at a time: the native library and numpy run beside each other."""
    threads = min(torch.get_num_threads(), MOST_AT_ONCE, len(spans))
    return _readers(threads).map(do, spans) if threads > 1 else map(do, spans)


@cache
def _readers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "ferrule-read")


def pack_numbers(numbers: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """``numbers`` (out, in), packed as ``dtype``."""
    held = numbers.to(dtype).contiguous()
    rows, columns = held.shape
    matrix = _plain_matrix(rows, columns, dtype)
    matrix.pack_plain(0, rows, held.data_ptr(), columns)
    return PackedMatrix(matrix, (rows, columns), dtype)


def _plain_matrix(rows: int, columns: int, dtype: torch.dtype) -> Matrix:
    return Matrix(rows, columns, CODES.index(PLAIN[dtype]), 0, 0, 0, 0, 0)


def fitting(found: GroupedMatrix) -> GroupedMatrix | None:
    """``found`` in groups of a size by which can be multiplied: 16 columns or a multiple of 32, or a whole row. None
    where its groups are smaller than that, or cut otherwise."""
    columns, groups = found.codes.shape[1], found.scales.shape[1]
    group = columns // groups
    fits = fitting_group(group, columns)
    if fits is None or found.layout.values not in PACKED_VALUES:
        return None
    if fits >= group:
        return found
    times = group // fits
    offsets = None if found.offsets is None else found.offsets.repeat(times, axis=1)
    return replace(found, scales=found.scales.repeat(times, axis=1), offsets=offsets, supers=None, super_offsets=None)


def _floats(parts: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    there = [part for part in parts if part is not None]
    return np.ascontiguousarray(joined(there), np.float32) if there else None


def _rows_of(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[tuple[Piece, Rectangle]]:
    """Rows by piece that are rows ``start`` to ``stop`` of all of them together."""
    place = 0
    for piece in pieces:
        rows = piece.part.shape[0]
        low, high = max(start, place), min(stop, place + rows)
        if low < high:
            yield piece, piece.part.some_rows(low - place, high - place)
        place += rows


def alike(groups: Sequence[GroupedMatrix]) -> bool:
    """Whether they can stand in one matrix."""
    first = groups[0]
    return all(
        each.layout == first.layout
        and each.scales.shape[1] == first.scales.shape[1]
        and (each.supers is None) == (first.supers is None)
        and (each.order is None) == (first.order is None)
        and (each.order is None or first.order is None or np.array_equal(each.order, first.order))
        for each in groups
    )


def _matrix_of(rows: int, first: GroupedMatrix) -> Matrix:
    layout, columns = first.layout, first.codes.shape[1]
    group = fitting_group(columns // first.scales.shape[1], columns)
    assert group is not None
    scale = layout.scale if first.supers is None else "nested"
    bits = 8 if layout.bits == 7 else layout.bits  # there are no codes of 7
    numbers = CODES.index(layout.values), bits, SCALES.index(scale)
    offsets = (1 + layout.zero_points) if layout.offsets else 0
    matrix = Matrix(rows, columns, *numbers, offsets, layout.zero, group)
    if first.order is not None:
        matrix.set_order(first.order.tolist())
    return matrix
