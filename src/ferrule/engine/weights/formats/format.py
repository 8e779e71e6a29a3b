"""The protocol of a weight format.

A weight of the model is stored as one or several tensors of a file (codes, scales, zeros): its *parts*. A format finds
the weights among the stored tensors, reads any slice of one as numbers, and may give a rank its slice as packed parts,
by which it multiplies without ever holding the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from ferrule.engine.weights.slicing import Slicing
from ferrule.model.headers import Stored

if TYPE_CHECKING:  # the server looks at formats, too, and needs no torch
    import torch
    from torch import Tensor

    from ferrule.engine.weights.formats.packed import Packed
    from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
    from ferrule.staging import Uploads


@dataclass(frozen=True)
class Weight:
    """A weight of the model as it is stored: its ``shape`` as numbers, its ``parts`` by their roles in the format.

    ``transposed``: the module holds (inputs, outputs) where the parts are in order of (outputs, inputs).
    """

    key: str
    shape: tuple[int, ...]
    format: Format
    parts: Mapping[str, Stored]
    transposed: bool = False

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns (outputs and inputs) as they are stored, of one matrix where the weight is a stack."""
        first, second = self.shape[-2:]
        return (second, first) if self.transposed else (first, second)

    @property
    def is_matrix(self) -> bool:
        """Whether its own dimensions are the rows and columns of `matrix`."""
        return len(self.shape) == 2 and not self.transposed

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())


class StoredTensors(Protocol):
    """Source of a format's parts."""

    def read_stored(self, key: str, cut: Slicing | None = None) -> list[Tensor]:
        """The ranges of the stored tensor ``key`` that ``cut`` names, in order (without its padding); the whole where
        it is None. In host memory."""
        ...

    def array(self, key: str) -> NDArray[Any]:
        """The stored tensor ``key`` as it lies in its file, not read yet: a read-only view of the mapped file, with the
        dtype that `weights.bits.RAW` names. Only the pages that are used are read."""
        ...


class Format(Protocol):
    """``name``: for people. ``methods``: the values of ``quant_method`` in config.json that mean this format."""

    name: str
    methods: frozenset[str]

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        """The weights among the ``stored`` tensors that have this format. ``settings``: config.json's
        ``quantization_config`` (MLX: ``quantization``), empty where there is none. ``source``: for the few bytes in
        which a format stores a shape. Raises `ModelError` for one that is damaged."""
        ...

    def border(self, weight: Weight, dim: int) -> int:
        """Along ``dim`` the weight can be cut at multiples of this many numbers."""
        ...

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        """The ranges of ``weight`` that ``cut`` names, as numbers, in order (without its padding)."""
        ...

    def numbers(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> Tensor:
        """``part`` of ``weight`` (of its matrix ``index``, where it is a stack) as numbers, with rows and columns as
        `Weight.matrix` counts them. Reads no more than that."""
        ...

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, uploads: Uploads
    ) -> Packed | None:
        """A rank's slice of ``weight`` (of a linear layer, with its padding) as it is to be held: packed, for products
        of ``dtype``, on the device of ``uploads``; None: as an ordinary tensor of numbers."""
        ...


@runtime_checkable
class ReadsGroups(Protocol):
    """A `Format` of grouped codes."""

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        """``part`` of ``weight`` (of its matrix ``index``, where it is a stack), as its groups. Reads no more than
        that from ``source``. Columns are cut at multiples of `border`; a group that is cut is returned as smaller
        groups of equal size."""
        ...
