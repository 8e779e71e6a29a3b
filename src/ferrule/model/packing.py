"""Storage and packed size of a matrix: codes in groups with their scales, or plain numbers.

The arithmetic of native/src/kernels/layout.h, whose layout is the same with all instruction sets; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

BLOCK = 16
"""Rows that lie side by side; a matrix is filled up to a multiple of it."""
LEAST_GROUP, SPAN = 16, 32
"""Columns: the smallest group, and what larger groups are multiples of."""
SUPER = 256
"""Columns of a block of nested scales."""
ORDER_BYTES = 4
"""Of the place of a column that does not stand in its own."""
Cut = Literal["rows", "columns", "copies"]
"""Axis along which matrices are shared out: their outputs, their inputs, or whole ones."""
Values = Literal["integer", "fp4", "nf4", "bnb_fp4", "iq4nl", "e4m3", "e5m2"]
"""Meaning of codes: themselves, or places in a table (`VALUES` of the engine)."""
Scale = Literal["f16", "bf16", "f32", "e8m0"]
"""Number format of scales and offsets on a rank: `e8m0` is a power of two."""

PACKED_VALUES: tuple[Values, ...] = ("integer", "fp4", "iq4nl", "nf4", "e4m3", "e5m2")
"""Values that the native library multiplies by, in the order of its numbers; the others are held as plain numbers."""
SCALE_BYTES: dict[Scale, int] = {"f16": 2, "bf16": 2, "f32": 4, "e8m0": 1}


@dataclass(frozen=True)
class Packing:
    """``bits`` of a code. ``group``: how many columns of a row share a scale (0: all). ``scale``, ``offset``: bytes of
    a group's scale, and of its offset or zero point (0: it has none). ``nested``: scales and offsets are held as bytes,
    whole multiples of a float16 for each 256 columns, as long as no cut goes through these. ``ordered``: columns do not
    stand in the order of their groups (act-order), so that which column is where is held, too."""

    bits: int
    group: int
    scale: int
    offset: int = 0
    nested: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class GroupLayout:
    """Storage of a matrix: ``bits`` of a code and what codes stand for; ``group``: how many columns of a row share a
    scale (0: all); ``scale``: how scales and offsets are held; ``zero``: the integer code that means zero where that is
    the same everywhere; ``offsets``: whether each group has an offset, which is added to its numbers; ``zero_points``:
    whether that is always minus its scale times a whole number of 0 to 255. ``nested``: scales and offsets are whole
    multiples, -128 to 127, of a number for each 256 columns, which a cut may go through."""

    bits: int
    group: int
    scale: Scale
    values: Values = "integer"
    zero: int = 0
    offsets: bool = False
    zero_points: bool = False
    nested: bool = False


def packing_of(layout: GroupLayout) -> Packing | None:
    """Packing of a matrix that is stored so; None: as plain numbers."""
    if layout.values not in PACKED_VALUES:
        return None
    scale = SCALE_BYTES[layout.scale]
    offset = 0 if not layout.offsets else 1 if layout.zero_points else scale
    return Packing(layout.bits, layout.group, scale, offset, layout.nested)


def padded(rows: int) -> int:
    """``rows`` filled up to whole blocks."""
    return -(-rows // BLOCK) * BLOCK


def matrix_bytes(
    rows: int, columns: int, packing: Packing | None, number_bytes: int, of_columns: int | None = None
) -> int:
    """Bytes of a packed matrix of ``rows`` outputs and ``columns`` inputs, out of ``of_columns`` (None: all). Where
    ``packing`` is None, or has groups that cannot be multiplied by, it is of numbers of ``number_bytes`` each.

    With columns in any order how many of each group there are depends on the numbers: then it is the most.
    """
    if not rows or not columns:
        return 0
    order = 0
    if packing is not None and packing.ordered:
        if of_columns not in (None, columns) and packing.group:
            groups = -(-(of_columns or columns) // packing.group)
            columns = (columns + (LEAST_GROUP - 1) * min(groups, columns)) // LEAST_GROUP * LEAST_GROUP
            packing = replace(packing, group=LEAST_GROUP)
        order = columns * ORDER_BYTES
    row = None if packing is None else _packed_row(columns, packing)
    if row is None:
        row = -(-columns // 2) * 2 * number_bytes
    return padded(rows) * row + order


def fitting_group(group: int, columns: int) -> int | None:
    """The group by which products of ``columns`` columns in groups of ``group`` are computed: that, if it is 16, a
    multiple of 32 or all columns (which are filled up to a multiple of 32); else 16, if it is a multiple of that; else
    None."""
    if group == columns:
        return -(-columns // SPAN) * SPAN
    if group % SPAN == 0 or group == LEAST_GROUP:
        return group
    return None if group % LEAST_GROUP else LEAST_GROUP


def _packed_row(columns: int, packing: Packing) -> int | None:
    whole = gcd(packing.group, columns) if packing.group else columns  # a group that a cut goes through is smaller ones
    group = fitting_group(whole, columns)
    if group is None:
        return None
    nested = packing.nested and group == packing.group and columns % SUPER == 0
    scale, offset = (1, bool(packing.offset)) if nested else (packing.scale, packing.offset)
    unit = max(group, SPAN)
    units = -(-columns // unit)
    metadata = unit // group * (scale + offset)
    supers = columns // SUPER * 2 * (1 + bool(packing.offset)) if nested else 0
    bits = 8 if packing.bits == 7 else packing.bits
    return units * (metadata + unit * bits // 8) + supers


@dataclass(frozen=True)
class Matrices:
    """``copies`` of one (outputs, inputs) matrix in blocks; half a one is joined with another. ``packing``: None for
    plain numbers of ``number_bytes``."""

    rows: int
    columns: int
    packing: Packing | None
    number_bytes: int
    cut: Cut | None
    copies: float = 1.0

    def bytes(self, share: float) -> int:
        """On a rank whose share of what is cut is ``share`` (0 to 1)."""
        rows = round(self.rows * share) if self.cut == "rows" else self.rows
        columns = round(self.columns * share) if self.cut == "columns" else self.columns
        copies = self.copies * share if self.cut == "copies" else self.copies
        return round(copies * matrix_bytes(rows, columns, self.packing, self.number_bytes, self.columns))


@dataclass(frozen=True)
class Numbers:
    """``count`` plain numbers of ``number_bytes`` each, which are ``cut`` or not."""

    number_bytes: int
    cut: bool
    count: int = 0

    def bytes(self, share: float) -> int:
        """As of `Matrices`."""
        return (round(self.count * share) if self.cut else self.count) * self.number_bytes


Pieces = frozenset[Matrices | Numbers]


def together(pieces: Iterable[Matrices | Numbers]) -> Pieces:
    """``pieces`` with equal ones counted in one."""
    found: dict[Matrices | Numbers, float] = {}
    for piece in pieces:
        match piece:
            case Matrices():
                key: Matrices | Numbers = replace(piece, copies=0.0)
                found[key] = found.get(key, 0.0) + piece.copies
            case Numbers():
                key = replace(piece, count=0)
                found[key] = found.get(key, 0) + piece.count
    return frozenset(
        replace(key, copies=many) if isinstance(key, Matrices) else replace(key, count=int(many))
        for key, many in found.items()
    )
