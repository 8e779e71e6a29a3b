"""A matrix in groups: codes of a few bits, and for each group of columns of a row a scale and perhaps an offset.

Every format of packed weights is read into this form, a rectangle at a time; the numbers follow from it, and so does
the form in which a rank multiplies by it. Pure: numpy arrays in, numpy arrays out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.slicing import Slicing
from ferrule.model import Range
from ferrule.model.packing import BLOCK, GroupLayout, Values

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1 (OCP Microscaling Formats v1.0, 5.3.3); the fourth bit is the sign."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The quantiles of a normal distribution (Dettmers et al., "QLoRA", 2023, appendix E)."""
BNB_FP4 = tuple(value / 12 for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0))
"""The magnitudes of bitsandbytes' own 4-bit float, by code; the fourth bit is the sign."""
IQ4NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""ggml's table of its formats IQ4_NL and IQ4_XS."""


def _float8(exponent_bits: int, mantissa_bits: int, bias: int, *, infinite: bool) -> tuple[float, ...]:
    """The 256 values of a float of 8 bits (OCP 8-bit Floating Point Specification v1.0)."""
    found = []
    for code in range(256):
        exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        value = fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
        if exponent == (1 << exponent_bits) - 1:
            if infinite:
                value = float("nan") if mantissa else float("inf")
            elif mantissa == (1 << mantissa_bits) - 1:
                value = float("nan")
        found.append(-value if code & 0x80 else value)
    return tuple(found)


E4M3 = _float8(4, 3, 7, infinite=False)
E5M2 = _float8(5, 2, 15, infinite=True)

VALUES: dict[Values, NDArray[np.float32]] = {
    "fp4": np.array([*FP4, *(-value for value in FP4)], np.float32),
    "nf4": np.array(NF4, np.float32),
    "bnb_fp4": np.array([*BNB_FP4, *(-value for value in BNB_FP4)], np.float32),
    "iq4nl": np.array(IQ4NL, np.float32),
    "e4m3": np.array(E4M3, np.float32),
    "e5m2": np.array(E5M2, np.float32),
}

STEP = 1 << 20
"""Numbers that are unpacked at a time: a tensor is never held whole as numbers on its way."""


@dataclass(frozen=True)
class Rectangle:
    """The rows and columns of a matrix that are meant: half-open ranges, in order."""

    rows: tuple[Range, ...]
    columns: tuple[Range, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return _length(self.rows), _length(self.columns)

    def some_rows(self, start: int, stop: int) -> Rectangle:
        """Rows ``start`` to ``stop`` of this rectangle's own."""
        found, place = [], 0
        for first, last in self.rows:
            low, high = max(start, place), min(stop, place + last - first)
            if low < high:
                found.append((first + low - place, first + high - place))
            place += last - first
        return Rectangle(tuple(found), self.columns)


def rectangle(shape: tuple[int, ...], cut: Slicing | None) -> Rectangle:
    """Rectangle that ``cut`` (without its padding) leaves of a matrix of ``shape`` (rows, columns)."""
    rows, columns = ((0, shape[0]),), ((0, shape[1]),)
    if cut is None:
        return Rectangle(rows, columns)
    return Rectangle(cut.ranges, columns) if cut.dim == 0 else Rectangle(rows, cut.ranges)


def steps(part: Rectangle) -> Iterator[tuple[int, int]]:
    """Rows of ``part`` by which it is read: `STEP` numbers at most, but a block of rows at least."""
    rows, columns = part.shape
    step = max(BLOCK, STEP // max(columns, 1) // BLOCK * BLOCK)
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def _length(ranges: tuple[Range, ...]) -> int:
    return sum(stop - start for start, stop in ranges)


@dataclass(frozen=True)
class GroupedMatrix:
    """``codes`` (rows, columns), uint8; ``scales`` and, where the layout has them, ``offsets`` (rows, groups), float32.

    A number is ``(value of its code - layout.zero) * scale + offset`` of its group. The layout's group divides the
    columns evenly. ``order``: where columns do not stand in their place (GPTQ's act-order): for each stored column the
    matrix's own, or -1 for one that only fills a group up and counts as zero. ``supers``, ``super_offsets`` (rows,
    columns / 256): where scales and offsets are whole multiples, -128 to 127, of one number for each 256 columns.
    """

    layout: GroupLayout
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None = None
    order: NDArray[np.int32] | None = None
    supers: NDArray[np.float32] | None = None
    super_offsets: NDArray[np.float32] | None = None

    def numbers(self) -> NDArray[np.float32]:
        """The matrix, with its columns in their own places: (rows, columns)."""
        rows, columns = self.codes.shape
        values = self.codes.astype(np.float32)
        if self.layout.values != "integer":
            values = VALUES[self.layout.values][self.codes]
        grouped = values.reshape(rows, self.scales.shape[1], -1)
        if self.layout.zero:
            grouped -= np.float32(self.layout.zero)
        grouped *= self.scales[:, :, None]
        if self.offsets is not None:
            grouped += self.offsets[:, :, None]
        stored = grouped.reshape(rows, columns)
        if self.order is None:
            return stored
        kept = self.order >= 0
        placed = np.empty((rows, int(kept.sum())), np.float32)
        placed[:, self.order[kept]] = stored[:, kept]
        return placed
