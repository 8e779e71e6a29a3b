"""Common base of all formats of grouped codes: a format reads any rectangle of a matrix as `GroupedMatrix`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle, rectangle, steps
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError
from ferrule.model.headers import Stored
from ferrule.model.packing import LEAST_GROUP, GroupLayout, Packing, packing_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ferrule.engine.weights.formats.packed import Packed
    from ferrule.staging import Uploads

Axes = Mapping[str, tuple[int | None, int | None]]


@dataclass(frozen=True, kw_only=True)
class GroupedWeight(Weight):
    """``layout``: how it is stored. ``block_rows``: how many rows share the scale of a group of columns. ``place``:
    which matrix of stacks of ``stack`` its parts are, where they hold one weight for each expert; None where the whole
    parts are this weight."""

    layout: GroupLayout
    block_rows: int = 1
    place: int | None = None
    stack: int = 1

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise ModelError(f"{self.key} has the shape {list(self.shape)} and holds nothing; download the model again")

    @property
    def bytes(self) -> int:
        return super().bytes // self.stack


class GroupedFormat(ABC):
    """`Format`. A weight of three dimensions is a stack of matrices, such as experts."""

    name: str
    methods: frozenset[str]
    axes: ClassVar[Axes] = {}
    """By role, of the parts of one matrix: which dimension goes with its rows and which with its columns, in equal
    steps. So the stored slice that a cut needs is known before anything is read. A part that is not named is needed
    whole."""

    @abstractmethod
    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]: ...

    def layout(self, weight: Weight) -> GroupLayout:
        """Layout of ``weight`` as it is stored."""
        assert isinstance(weight, GroupedWeight)
        return weight.layout

    @abstractmethod
    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        """As `ReadsGroups`."""

    def packing(self, weight: Weight, source: StoredTensors) -> Packing | None:
        """Packing of ``weight`` on a rank; None: as plain numbers."""
        return packing_of(self.layout(weight))

    def border(self, weight: Weight, dim: int) -> int:
        if dim != len(weight.shape) - (2 if weight.transposed else 1):
            return 1
        group = self.layout(weight).group or weight.matrix[1]
        return gcd(group, 32) if group % LEAST_GROUP == 0 else group

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        import torch

        spans = [None] if cut is None else [Slicing(cut.dim, cut.of, (span,)) for span in cut.ranges]
        return [torch.from_numpy(self._numbers(weight, span, source)) for span in spans]

    def _numbers(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> np.ndarray[Any, Any]:
        stacked = len(weight.shape) == 3
        chosen = range(weight.shape[0]) if stacked else range(1)
        if stacked and cut is not None and cut.dim == 0:
            chosen = range(*cut.ranges[0])
            cut = None
        part = rectangle(weight.matrix, _of_matrix(weight, cut))
        found = np.empty((len(chosen), *part.shape), np.float32)
        for place, index in enumerate(chosen):
            for start, stop in steps(part):
                found[place, start:stop] = self.groups(weight, part.some_rows(start, stop), source, index).numbers()
        if weight.transposed:
            found = found.swapaxes(1, 2)
        return found if stacked else found[0]

    def numbers(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> Tensor:
        import torch

        return torch.from_numpy(self.groups(weight, part, source, index).numbers())

    def needed(self, weight: Weight, cut: Slicing | None) -> Iterator[tuple[str, Slicing | None]]:
        """The slices of stored tensors that `read` of ``cut`` asks for, each within one that it may be sent as."""
        stacked = len(weight.shape) == 3
        for role, stored in weight.parts.items():
            if isinstance(weight, GroupedWeight) and weight.place is not None:
                yield stored.name, Slicing(0, weight.stack, ((weight.place, weight.place + 1),))
            elif cut is None:
                yield stored.name, None
            elif stacked and cut.dim == 0:
                in_stack = bool(stored.shape) and stored.shape[0] == cut.of
                yield stored.name, Slicing(0, cut.of, cut.ranges) if in_stack else None
            else:
                within = _of_matrix(weight, cut)
                axis = self.axes.get(role, (None, None))[within.dim]
                dim = None if axis is None else axis + stacked
                yield stored.name, None if dim is None else _proportion(within, dim, stored.shape[dim])

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, uploads: Uploads
    ) -> Packed | None:
        from ferrule.engine.weights.device_matrix import pack_on
        from ferrule.engine.weights.matrix import Piece, pack

        if len(weight.shape) != 2 or uploads.device.type == "meta":  # there nothing is read
            return None
        piece, pad = Piece(weight, cut), 0 if cut is None else cut.pad
        if uploads.device.type != "cpu":
            return pack_on(piece, source, dtype, uploads, pad)
        return pack([piece], source, dtype, pad)


@overload
def _of_matrix(weight: Weight, cut: Slicing) -> Slicing: ...
@overload
def _of_matrix(weight: Weight, cut: Slicing | None) -> Slicing | None: ...
def _of_matrix(weight: Weight, cut: Slicing | None) -> Slicing | None:
    """``cut`` of a weight as one of the rows or columns of its matrices as they are stored."""
    if cut is None:
        return None
    dim = cut.dim - (len(weight.shape) - 2)
    return Slicing(1 - dim if weight.transposed else dim, cut.of, cut.ranges)


def _proportion(cut: Slicing, dim: int, length: int) -> Slicing:
    """Proportion of ``cut`` to a stored dimension that is ``length`` long, and holds the same in equal steps."""
    ranges = tuple((start * length // cut.of, -(-stop * length // cut.of)) for start, stop in cut.ranges)
    return Slicing(dim, length, ranges)


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
