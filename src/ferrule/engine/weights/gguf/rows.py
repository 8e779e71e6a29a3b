"""Row order of weights in a GGUF file: places of a weight's rows in the tensors that it is made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class RowOrder(Protocol):
    """Rows of a weight -> which of its parts each is in, and which row of that part."""

    def places(self, rows: Indices) -> tuple[Indices, Indices]: ...


@dataclass(frozen=True)
class InPlace:
    """`RowOrder`: one part, as it is."""

    def places(self, rows: Indices) -> tuple[Indices, Indices]:
        return np.zeros_like(rows), rows


@dataclass(frozen=True)
class Turned:
    """`RowOrder` of queries and keys in files of the architecture ``llama``: the two halves of a head's ``width`` rows
    are stored alternately, since llama.cpp's rotary embedding turns neighbours where transformers' turns halves."""

    width: int

    def places(self, rows: Indices) -> tuple[Indices, Indices]:
        head, row = np.divmod(rows, self.width)
        half, place = np.divmod(row, self.width // 2)
        return np.zeros_like(rows), head * self.width + 2 * place + half


@dataclass(frozen=True)
class Joined:
    """`RowOrder`: ``rows`` of the first part, then those of the second."""

    rows: int

    def places(self, rows: Indices) -> tuple[Indices, Indices]:
        part, row = np.divmod(rows, self.rows)
        return part, row


@dataclass(frozen=True)
class Alternate:
    """`RowOrder`: a row of the first part and one of the second in turn."""

    def places(self, rows: Indices) -> tuple[Indices, Indices]:
        row, part = np.divmod(rows, 2)
        return part, row


@dataclass(frozen=True)
class ByKeyHead:
    """`RowOrder` of a gated delta net's one projection (Qwen3-Next): for each of ``heads`` of keys its queries and
    keys, of ``key`` rows each, then values and gates, of ``value`` rows each. The first part has all queries, all keys
    and all values, the second all gates."""

    heads: int
    key: int
    value: int

    def places(self, rows: Indices) -> tuple[Indices, Indices]:
        sizes = np.array([self.key, self.key, self.value, self.value], np.int64)
        ends = np.cumsum(sizes)
        head, within = np.divmod(rows, ends[-1])
        kind = np.searchsorted(ends, within, side="right")
        before = np.array([0, self.heads * self.key, 2 * self.heads * self.key, 0], np.int64)
        part = (kind == 3).astype(np.int64)
        return part, before[kind] + head * sizes[kind] + within - (ends - sizes)[kind]


IN_PLACE = InPlace()


def ranges_of(rows: Indices) -> tuple[tuple[int, int], ...]:
    """The half-open ranges that cover exactly ``rows``."""
    if not len(rows):
        return ()
    ordered = np.unique(rows)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    runs = np.split(ordered, breaks)
    return tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
