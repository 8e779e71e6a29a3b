"""Parts of stored tensors as rectangles: which bytes of a file they are, what of them is missing, how they are cut.

A tensor of a file is seen along the dimension ``dim`` that it is cut along: as many *rows* as there are elements in the
dimensions before, each of ``length`` elements of ``inner`` bytes. A part is a rectangle: rows ``first`` to ``last``,
elements ``start`` to ``stop`` of each. Along dimension 0 a part is contiguous, and there the elements are bytes. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ferrule.engine.weights.slicing import Slicing

PIECE_BYTES = 4 << 20
"""The most that is sent, hashed and noted as one piece (a single element of a cut may be more)."""
BLOCK = 4096
"""Bytes that file systems give out at once."""

Run = tuple[int, int]
"""Offset and length in bytes."""


@dataclass(frozen=True)
class View:
    """A tensor along one dimension: ``rows`` times ``length`` elements of ``inner`` bytes."""

    rows: int
    length: int
    inner: int


@dataclass(frozen=True)
class Piece:
    """Of tensor ``key`` along ``dim``: rows ``first`` to ``last``, and in each the elements ``start`` to ``stop``."""

    key: str
    dim: int
    first: int
    last: int
    start: int
    stop: int

    def bytes(self, view: View) -> int:
        return (self.last - self.first) * (self.stop - self.start) * view.inner

    def runs(self, view: View) -> Iterator[Run]:
        """Byte ranges of the piece, relative to the tensor's first byte."""
        row, run = view.length * view.inner, (self.stop - self.start) * view.inner
        if run == row:
            yield self.first * row, (self.last - self.first) * row
            return
        for number in range(self.first, self.last):
            yield number * row + self.start * view.inner, run

    def disk_bytes(self, view: View) -> int:
        """At most how much of a disk it takes: whole blocks."""
        row, run = view.length * view.inner, (self.stop - self.start) * view.inner
        rows = self.last - self.first
        if run == row:
            return rows * row + 2 * BLOCK
        return rows * min(row, (run // BLOCK + 2) * BLOCK) + BLOCK


def view_of(shape: Sequence[int], item: int, dim: int) -> View:
    """A tensor of ``shape`` with elements of ``item`` bytes along ``dim``."""
    if dim == 0:
        return View(1, math.prod(shape) * item, 1)
    return View(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]) * item)


def wanted(key: str, shape: Sequence[int], item: int, cut: Slicing | None) -> list[Piece]:
    """Piece that ``cut`` (None: everything) names of a tensor."""
    if cut is None:
        return [Piece(key, 0, 0, 1, 0, math.prod(shape) * item)]
    if cut.dim == 0:
        row = math.prod(shape[1:]) * item
        return [Piece(key, 0, 0, 1, start * row, stop * row) for start, stop in cut.ranges if start < stop]
    rows = math.prod(shape[: cut.dim])
    return [Piece(key, cut.dim, 0, rows, start, stop) for start, stop in cut.ranges if start < stop]


def cut_up(piece: Piece, view: View, limit: int = PIECE_BYTES) -> list[Piece]:
    """``piece`` as pieces of at most ``limit`` bytes each, as far as its elements allow."""
    row = max(1, (piece.stop - piece.start) * view.inner)
    if row <= limit:
        step = limit // row
        return [
            replace(piece, first=first, last=min(piece.last, first + step))
            for first in range(piece.first, piece.last, step)
        ]
    step = max(1, limit // view.inner)
    return [
        replace(piece, first=number, last=number + 1, start=start, stop=min(piece.stop, start + step))
        for number in range(piece.first, piece.last)
        for start in range(piece.start, piece.stop, step)
    ]


def without(piece: Piece, other: Piece) -> list[Piece]:
    """Difference of ``piece`` and ``other`` (of the same tensor, along the same dimension)."""
    if other.first >= piece.last or other.last <= piece.first or other.start >= piece.stop or other.stop <= piece.start:
        return [piece]
    left = []
    if piece.first < other.first:
        left.append(replace(piece, last=other.first))
    if other.last < piece.last:
        left.append(replace(piece, first=other.last))
    middle = replace(piece, first=max(piece.first, other.first), last=min(piece.last, other.last))
    if piece.start < other.start:
        left.append(replace(middle, stop=other.start))
    if other.stop < piece.stop:
        left.append(replace(middle, start=other.stop))
    return left


class Coverage:
    """The parts of tensors that are there."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._by_tensor: dict[str, dict[int, list[Piece]]] = {}
        for piece in pieces:
            self.add(piece)

    def add(self, piece: Piece) -> None:
        there = self._by_tensor.setdefault(piece.key, {}).setdefault(piece.dim, [])
        if there:  # pieces mostly come one after the other: few rectangles are left of them
            last = there[-1]
            if (last.start, last.stop, last.last) == (piece.start, piece.stop, piece.first):
                there[-1] = replace(last, last=piece.last)
                return
            if (last.first, last.last, last.stop) == (piece.first, piece.last, piece.start):
                there[-1] = replace(last, stop=piece.stop)
                return
        there.append(piece)

    def missing(self, piece: Piece, shape: Sequence[int], item: int) -> list[Piece]:
        """Missing parts of ``piece``. Parts along another dimension count only where they make up the whole."""
        by_dim = self._by_tensor.get(piece.key, {})
        left = _without_all(piece, by_dim.get(piece.dim, ()))
        if left:
            for dim, there in by_dim.items():
                view = view_of(shape, item, dim)
                if dim != piece.dim and not _without_all(Piece(piece.key, dim, 0, view.rows, 0, view.length), there):
                    return []
        return left


def _without_all(piece: Piece, others: Iterable[Piece]) -> list[Piece]:
    left = [piece]
    for other in others:
        left = [rest for part in left for rest in without(part, other)]
    return left
