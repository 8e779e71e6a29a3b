"""Pieces of a packed matrix: slices of a checkpoint's tensors that make a parameter, or one of its experts.

As `weights.loading`, which fills ordinary parameters: experts are stacked in one parameter, while most checkpoints
store them one by one, and gate and up apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Any

from transformers.core_model_loading import Concatenate, MergeModulelist

from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.formats.grouped import GroupedFormat
from ferrule.engine.weights.matrix import Piece
from ferrule.engine.weights.slicing import Slicing


@dataclass
class Recipe:
    """Recipe of one parameter: the keys of each source pattern, in order, and the conversion (None: a plain key)."""

    converter: Any = None
    sources: dict[str, list[str]] = field(default_factory=dict)


def of_matrix(recipe: Recipe, cut: Slicing | None, checkpoint: Checkpoint) -> list[Piece] | None:
    """Of a parameter with two dimensions, without padding; None where it must be converted as a whole."""
    if recipe.converter is not None:
        return None
    (keys,) = recipe.sources.values()
    return [Piece(checkpoint.tensors[keys[-1]], cut)]


def of_expert(
    recipe: Recipe, cut: Slicing | None, expert: int, transposed: bool, checkpoint: Checkpoint
) -> list[Piece] | None:
    """Of this rank's expert number ``expert`` of a stacked parameter, which has inputs first where it is
    ``transposed``; None where it must be converted as a whole."""
    first, inner = 0, cut
    if cut is not None and cut.dim == 0:
        first, inner = cut.ranges[0][0], None
    if recipe.converter is None:
        (keys,) = recipe.sources.values()
        within_one = None if inner is None else Slicing(inner.dim - 1, inner.of, inner.ranges)
        weight = checkpoint.tensors[keys[-1]]
        turned = weight.transposed != transposed
        if turned and isinstance(weight.format, GroupedFormat):
            return None
        return [Piece(weight, within_one, first + expert, turned)]
    if transposed:
        return None
    operations = recipe.converter.operations
    kinds = [type(operation) for operation in operations]
    if kinds[:1] != [MergeModulelist] or operations[0].dim != 0 or kinds[1:] not in ([], [Concatenate]):
        return None
    joined = operations[1].dim if len(operations) == 2 else None
    if joined not in (None, 1):
        return None
    pieces, offset = [], 0
    for pattern in recipe.converter.source_patterns:
        if pattern not in recipe.sources:
            continue
        weight = checkpoint.tensors[recipe.sources[pattern][first + expert]]
        if joined is None:
            part = None if inner is None else Slicing(inner.dim - 1, inner.of, inner.ranges)
        else:
            part = within(inner, joined, offset, weight.shape)
            offset += weight.shape[0]
        pieces.append(Piece(weight, part))
    return pieces


def border_of(recipe: Recipe, dim: int, dims: int, checkpoint: Checkpoint) -> int:
    """At multiples of how many numbers what makes a parameter of ``dims`` dimensions can be cut along ``dim``."""
    found = 1
    for weight in (checkpoint.tensors[key] for keys in recipe.sources.values() for key in keys[-1:]):
        stored = dim - (dims - len(weight.shape))
        found = lcm(found, weight.format.border(weight, stored) if stored >= 0 else 1)
    return found


def within(cut: Slicing | None, joined_dim: int, offset: int, shape: tuple[int, ...]) -> Slicing | None:
    """The part of ``cut`` (of a stacked, joined parameter) that falls into the source at ``offset`` of the joint."""
    if cut is None or cut.dim == 0:
        return None
    if cut.dim != joined_dim:
        return Slicing(cut.dim - 1, cut.of, cut.ranges)
    end = offset + shape[joined_dim - 1]
    clipped = [(max(start, offset) - offset, min(stop, end) - offset) for start, stop in cut.ranges]
    ranges = tuple((start, stop) for start, stop in clipped if start < stop)
    return Slicing(joined_dim - 1, shape[joined_dim - 1], ranges)
