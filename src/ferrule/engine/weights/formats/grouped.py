"""What all formats of grouped codes share: a format says how any rectangle of a matrix is read as `GroupedMatrix`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.groups import GroupedMatrix, GroupLayout, Rectangle, rectangle
from ferrule.engine.weights.slicing import Slicing
from ferrule.model.headers import Stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ferrule.engine.weights.formats.packed import Packed

STEP = 1 << 22
"""Numbers that are unpacked at a time: a tensor is never held whole as numbers on its way."""
LEAST_GROUP = 16
"""Columns. Where a cut goes through groups they are held as smaller ones with the same scale, down to this size."""


class GroupedFormat(ABC):
    """`Format`. A weight of three dimensions is a stack of matrices, such as experts."""

    name: str
    methods: frozenset[str]

    @abstractmethod
    def recognise(self, stored: Mapping[str, Stored], settings: Mapping[str, Any]) -> list[Weight]: ...

    @abstractmethod
    def layout(self, weight: Weight) -> GroupLayout:
        """How ``weight`` is stored."""

    @abstractmethod
    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        """``part`` of ``weight`` (of its matrix ``index``, where it is a stack), as its groups. Reads no more than
        that from ``source``. Columns are cut at multiples of `border`; a group that is cut is returned as smaller
        groups of equal size."""

    def border(self, weight: Weight, dim: int) -> int:
        if dim != len(weight.shape) - 1:
            return 1
        group = self.layout(weight).group or weight.shape[-1]
        return gcd(group, 32) if group % LEAST_GROUP == 0 else group

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        import torch

        spans = [None] if cut is None else [Slicing(cut.dim, cut.of, (span,)) for span in cut.ranges]
        return [torch.from_numpy(self._numbers(weight, span, source)) for span in spans]

    def _numbers(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> np.ndarray[Any, Any]:
        if len(weight.shape) == 2:
            part = rectangle(weight.shape, cut)
            found = np.empty(part.shape, np.float32)
            for start, stop in steps(part):
                found[start:stop] = self.groups(weight, part.some_rows(start, stop), source).numbers()
            return found
        chosen = range(weight.shape[0])
        if cut is not None and cut.dim == 0:
            chosen = range(*cut.ranges[0])
            cut = None
        within = None if cut is None else Slicing(cut.dim - 1, cut.of, cut.ranges)
        part = rectangle(weight.shape[1:], within)
        stack = np.empty((len(chosen), *part.shape), np.float32)
        for place, index in enumerate(chosen):
            for start, stop in steps(part):
                stack[place, start:stop] = self.groups(weight, part.some_rows(start, stop), source, index).numbers()
        return stack

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, device: torch.device
    ) -> Packed | None:
        return None


def steps(part: Rectangle, multiple: int = 16) -> Iterator[tuple[int, int]]:
    """Rows of ``part`` by which it is read: `STEP` numbers at most, but ``multiple`` rows at least."""
    rows, columns = part.shape
    step = max(multiple, STEP // max(columns, 1) // multiple * multiple)
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def split_groups(
    scales: np.ndarray[Any, Any], group: int, columns: tuple[tuple[int, int], ...]
) -> tuple[np.ndarray[Any, Any], int]:
    """The scales (rows, groups) of ``columns``, and how many columns each is for: groups that a border cuts become
    smaller ones of equal size."""
    size = group
    for start, stop in columns:
        size = gcd(size, gcd(start, stop))
    if size == 0:
        return scales[:, :0], group
    index = np.concatenate([np.arange(start, stop, size) // group for start, stop in columns])
    return np.ascontiguousarray(scales[:, index]), size
