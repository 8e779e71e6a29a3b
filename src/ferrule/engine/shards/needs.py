"""Parts of a model's files that a rank reads: found by loading them, without memory and without data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ferrule.engine.rank.model import blueprint
from ferrule.engine.shards.pieces import Piece, wanted
from ferrule.engine.shards.weight_files import read_layout
from ferrule.engine.weights.checkpoint import Checkpoint, check_border
from ferrule.engine.weights.formats.grouped import GroupedFormat
from ferrule.engine.weights.formats.plain import TORCH_DTYPES
from ferrule.engine.weights.gguf.weight import needs as gguf_needs
from ferrule.engine.weights.slicing import Slicing
from ferrule.fabric import Group
from ferrule.plan import Shard


@dataclass(frozen=True)
class _PlaceInStage:
    """As much of a group as cutting a model asks for."""

    rank: int
    size: int


class _Notes(Checkpoint):
    """Notes what is read, and gives tensors without memory for it."""

    def __init__(self, directory: Path, *, mtp: bool) -> None:
        super().__init__(directory, mtp=mtp)
        self.asked: list[tuple[str, Slicing | None]] = []

    def read(self, key: str, cut: Slicing | None = None) -> list[Tensor]:
        weight = self.tensors[key]
        if self.gguf is None and not isinstance(weight.format, GroupedFormat):
            return super().read(key, cut)
        check_border(weight, cut)
        if self.gguf is not None:
            self.asked += gguf_needs(weight, cut, self.stored)
        elif isinstance(weight.format, GroupedFormat):
            self.asked += weight.format.needed(weight, cut)
        return _empty(weight.shape, cut, torch.float32)

    def rows(self, key: str, cut: Slicing | None = None) -> Iterator[tuple[int, int, Tensor]]:
        self.read(key, cut)
        return iter(())

    def read_stored(self, key: str, cut: Slicing | None = None) -> list[Tensor]:
        self.asked.append((key, cut))
        stored = self.stored[key]
        return _empty(stored.shape, cut, getattr(torch, TORCH_DTYPES[stored.dtype]))


def _empty(shape: tuple[int, ...], cut: Slicing | None, dtype: torch.dtype) -> list[Tensor]:
    """Slice ``cut`` of a tensor, without memory."""
    shapes = [shape]
    if cut is not None:
        shapes = [(*shape[: cut.dim], stop - start, *shape[cut.dim + 1 :]) for start, stop in cut.ranges]
    return [torch.empty(each, dtype=dtype, device="meta") for each in shapes]


def needs(directory: Path, dtype: str, shard: Shard, weights: str | None = None, *, mtp: bool = False) -> list[Piece]:
    """Parts that the rank of ``shard`` reads of the files in ``directory``, of which only the headers need be there.
    ``weights``: to which it quantises them, at the borders of whose groups it cuts. ``mtp``: as in `Checkpoint`.

    Raises what building the rank's part raises.
    """
    places = read_layout(directory).places()
    group = cast(Group, _PlaceInStage(shard.part, shard.parts))
    with _Notes(directory, mtp=mtp) as notes, Checkpoint(directory, weights, mtp=mtp) as quantised:
        planned = blueprint(directory, dtype, shard, group, quantised, mtp=mtp)
        planned.fill(notes, lambda done, total: None, torch.device("meta"))
    return [piece for key, cut in notes.asked for piece in wanted(key, places[key].shape, places[key].item, cut)]
