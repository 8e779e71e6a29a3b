"""Slicing: the part of each tensor that a rank holds. Pure: shapes and numbers in, ranges out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.errors import PlanError
from ferrule.model import HeadSplit, Range


@dataclass(frozen=True)
class Slicing:
    """One rank's part of a tensor: along ``dim``, which is ``of`` long in the whole, these half-open ``ranges``.

    ``pad`` rows of zeros follow them, so that ranks with shorter parts still exchange equal sizes.
    """

    dim: int
    of: int
    ranges: tuple[Range, ...]
    pad: int = 0

    @property
    def size(self) -> int:
        return sum(stop - start for start, stop in self.ranges) + self.pad

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of this part of a tensor of shape ``whole``."""
        return (*whole[: self.dim], self.size, *whole[self.dim + 1 :])


def columns(size: int, dim: int, held: Range) -> Slicing:
    """One range of ``dim``."""
    return Slicing(dim, size, (held,))


def packed(size: int, dim: int, held: Range, what: str, pieces: int = 2) -> Slicing:
    """The same range of each of ``pieces`` tensors that are stored end to end along ``dim`` (such as gate and up)."""
    length = piece_length(size, what, pieces)
    start, stop = held
    return Slicing(dim, size, tuple((piece * length + start, piece * length + stop) for piece in range(pieces)))


def piece_length(size: int, what: str, pieces: int = 2) -> int:
    """Of one of ``pieces`` tensors that are stored end to end."""
    if size % pieces:
        raise PlanError(f"{what} {size} is said to hold {pieces} tensors end to end but does not divide by {pieces}")
    return size // pieces


def heads(size: int, dim: int, count: int, held: Range, what: str) -> Slicing:
    """The rows of heads ``held`` out of ``count`` heads of equal width."""
    if size % count:
        raise PlanError(f"{what} has {size} rows, which do not divide by {count} heads")
    width = size // count
    return Slicing(dim, size, ((held[0] * width, held[1] * width),))


def fused_qkv(size: int, dim: int, query_heads: int, key_value_heads: int, split: HeadSplit, what: str) -> Slicing:
    """This rank's rows of query, key and value heads that are stored end to end in one projection."""
    total = query_heads + 2 * key_value_heads
    if size % total:
        raise PlanError(f"{what} has {size} rows, which do not divide by {total} query, key and value heads")
    width = size // total
    key, value = query_heads, query_heads + key_value_heads
    first, last = split.key_value
    return Slicing(
        dim,
        size,
        (
            (split.query[0] * width, split.query[1] * width),
            ((key + first) * width, (key + last) * width),
            ((value + first) * width, (value + last) * width),
        ),
    )


def vocabulary(size: int, parts: Sequence[Range], part: int) -> Slicing:
    """Rows of ``part``. Equal shares are filled up to the longest, so that ranks exchange what they have as it is."""
    lengths = [stop - start for start, stop in parts]
    nearly = max(lengths) - min(lengths) <= 1
    return Slicing(0, size, (parts[part],), pad=max(lengths) - lengths[part] if nearly else 0)
