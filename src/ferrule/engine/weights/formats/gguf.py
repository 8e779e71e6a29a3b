"""Weights of GGUF files: blocks of ggml's types, plain numbers, and what is made of several tensors.

They are found by their names (`weights.gguf.names`), not by `recognise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import joined
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.gguf_blocks import BLOCK_TYPES
from ferrule.engine.weights.formats.grouped import GroupedFormat
from ferrule.engine.weights.gguf.weight import GgufWeight, blocks_of, each_row, read_rows
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle, steps
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError
from ferrule.model import Range
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ferrule.staging import Uploads

PLAIN = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
"""numpy's name for the types that hold numbers as they are."""
Floats = NDArray[np.float32]


class GgufGroups(GroupedFormat):
    """`Format`: blocks of one of ggml's types (`gguf_blocks`), of one tensor or of several whose rows are joined.

    `groups` counts rows as they are stored, that is in the direction of outputs, also where ``weight`` has its last two
    dimensions the other way round (`GgufWeight.axes`).
    """

    methods: frozenset[str] = frozenset()

    def __init__(self, kind: str) -> None:
        self.kind = BLOCK_TYPES[kind]
        self.name = f"GGUF {kind}"

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        return []

    def layout(self, weight: Weight) -> GroupLayout:
        return self.kind.layout

    def border(self, weight: Weight, dim: int) -> int:
        return self.kind.layout.group if cast(GgufWeight, weight).axes[dim] == 2 else 1

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        made = cast(GgufWeight, weight)
        rows = each_row(part.rows)
        found = [self._columns(made, rows, span, source, index) for span in part.columns]
        codes, scales, offsets, supers, super_offsets = [
            None if any(part is None for part in parts) else joined(parts, 1) for parts in zip(*found, strict=True)
        ]
        assert codes is not None
        assert scales is not None
        return GroupedMatrix(self.kind.layout, codes, scales, offsets, supers=supers, super_offsets=super_offsets)

    def _columns(
        self, weight: GgufWeight, rows: NDArray[np.int64], columns: Range, source: StoredTensors, index: int
    ) -> tuple[NDArray[np.uint8], Floats, Floats | None, Floats | None, Floats | None]:
        """Codes, scales, offsets, and what these are multiples of where no block is cut: as in `GroupedMatrix`."""
        group, block = self.kind.layout.group, self.kind.numbers
        codes = np.empty((len(rows), columns[1] - columns[0]), np.uint8)
        first = columns[0] // block * block
        of_codes = slice(columns[0] - first, columns[1] - first)
        of_groups = slice(of_codes.start // group, of_codes.stop // group)
        held = [np.empty((len(rows), codes.shape[1] // group), np.float32) for _ in range(1 + self.kind.layout.offsets)]
        whole = of_codes.start == 0 and of_codes.stop % block == 0
        supers = [np.empty((len(rows), codes.shape[1] // block), np.float32) for _ in self.kind.supers if whole]
        if codes.size:
            for _, chosen, blocks in read_rows(weight, rows, columns, source, index):
                some = slice(None) if chosen is None else chosen
                flat = np.ascontiguousarray(blocks).reshape(-1, self.kind.size)
                taken, *numbers = self.kind.take_apart(flat)
                codes[some] = taken.reshape(len(blocks), -1)[:, of_codes]
                for to, each in zip(held, numbers, strict=False):
                    assert each is not None
                    to[some] = each.reshape(len(blocks), -1)[:, of_groups]
                for to, each in zip(supers, self.kind.multiples_of(flat), strict=False):
                    to[some] = each.reshape(len(blocks), -1)
        scales, offsets = [*held, None][:2]
        by, offsets_by = [*supers, None, None][:2]
        assert scales is not None
        return codes, scales, offsets, by, offsets_by

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        return _read(self, cast(GgufWeight, weight), cut, source)


class GgufNumbers:
    """`Format`: plain numbers, or tensors of different types whose rows are joined; held as numbers."""

    methods: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = f"GGUF {name}"

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        return []

    def border(self, weight: Weight, dim: int) -> int:
        if cast(GgufWeight, weight).axes[dim] != 2:
            return 1
        groups = [BLOCK_TYPES[part.dtype].layout.group for part in weight.parts.values() if part.dtype in BLOCK_TYPES]
        return max(groups, default=1)

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        return _read(self, cast(GgufWeight, weight), cut, source)

    def numbers(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> Tensor:
        import torch

        made, rows = cast(GgufWeight, weight), each_row(part.rows)
        found = joined([self._columns(made, rows, span, source, index) for span in part.columns], 1)
        return torch.from_numpy(found)

    def _columns(
        self, weight: GgufWeight, rows: NDArray[np.int64], columns: Range, source: StoredTensors, index: int
    ) -> Floats:
        found = np.empty((len(rows), columns[1] - columns[0]), np.float32)
        for part, chosen, blocks in read_rows(weight, rows, columns, source, index):
            block = BLOCK_TYPES[part.dtype].numbers if part.dtype in BLOCK_TYPES else 1
            first = columns[0] // block * block
            of_part = numbers_of(part.dtype, blocks)[:, columns[0] - first : columns[1] - first]
            found[slice(None) if chosen is None else chosen] = of_part
        if weight.less:
            found -= np.float32(weight.less)
        if weight.decays:
            if not (found < 0).all():
                raise ModelError(f"{weight.key} has a decay that is not below 0; download the model again")
            found = np.log(-found)
        return found

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, uploads: Uploads
    ) -> None:
        return None


class GgufLatent:
    """`Format`: DeepSeek's ``kv_b_proj`` of a file that has it as two stacks with a matrix for each head: keys as
    (latent, keys), which is the other way round, and values as (values, latent)."""

    name = "GGUF keys and values of latents"
    methods: frozenset[str] = frozenset()

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        return []

    def border(self, weight: Weight, dim: int) -> int:
        keys, values = weight.parts["keys"], weight.parts["values"]
        return keys.shape[2] + values.shape[1] if dim == 0 else weight.shape[1]

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        import torch

        border = self.border(weight, 0)
        ranges = ((0, weight.shape[0]),) if cut is None or cut.dim == 1 else cut.ranges
        found = []
        for start, stop in ranges:
            heads = slice(start // border, -(-stop // border))
            keys, values = (self._heads(weight.parts[each], heads, source) for each in ("keys", "values"))
            found.append(np.concatenate([keys.transpose(0, 2, 1), values], axis=1).reshape(-1, weight.shape[1]))
        return [torch.from_numpy(each) for each in found]

    def numbers(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> Tensor:
        border = self.border(weight, 0)
        first, last = part.rows[0][0] // border * border, -(-part.rows[-1][1] // border) * border
        (heads,) = self.read(weight, Slicing(0, weight.shape[0], ((first, last),)), source)
        return heads[each_row(part.rows) - first][:, each_row(part.columns)]

    def _heads(self, part: Stored, heads: slice, source: StoredTensors) -> Floats:
        blocks = blocks_of(part, source)[heads]
        return numbers_of(part.dtype, blocks.reshape(-1, blocks.shape[2])).reshape(len(blocks), *part.shape[1:])

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, uploads: Uploads
    ) -> None:
        return None


@cache
def format_of(kinds: frozenset[str]) -> GgufGroups | GgufNumbers:
    """The format of a weight whose parts have these types; all of them must be readable (`READ`)."""
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return GgufGroups(kind) if kind in BLOCK_TYPES else GgufNumbers(" and ".join(sorted(kinds)))


READ = frozenset(PLAIN) | frozenset(BLOCK_TYPES)
"""The types that are read here."""


def numbers_of(kind: str, blocks: NDArray[np.uint8]) -> Floats:
    """The numbers of whole blocks of ggml's type ``kind``: (rows, bytes) to (rows, numbers)."""
    blocks = np.ascontiguousarray(blocks)
    if kind in BLOCK_TYPES:
        block = BLOCK_TYPES[kind]
        codes, scales, offsets = block.take_apart(blocks.reshape(-1, block.size))
        return GroupedMatrix(block.layout, codes, scales, offsets).numbers().reshape(len(blocks), -1)
    plain = blocks.view(PLAIN[kind])
    if kind == "BF16":
        return (plain.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(plain, np.float32)


def _read(
    form: GgufGroups | GgufNumbers, weight: GgufWeight, cut: Slicing | None, source: StoredTensors
) -> list[Tensor]:
    import torch

    spans = [None] if cut is None else [Slicing(cut.dim, cut.of, (span,)) for span in cut.ranges]
    found = []
    for span in spans:
        stack, rows, columns = weight.spans(span)
        part, chosen = Rectangle(rows, columns), each_row(stack)
        whole = torch.empty((len(chosen), *part.shape))
        for place, index in enumerate(chosen):
            for start, stop in steps(part):
                whole[place, start:stop] = form.numbers(weight, part.some_rows(start, stop), source, int(index))
        found.append(torch.from_numpy(weight.placed(whole.numpy())))
    return found
