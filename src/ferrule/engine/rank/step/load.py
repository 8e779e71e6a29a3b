"""Fill the parameters of a model whose step is a program: matrices packed, the rest as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from ferrule.engine.rank.adapters.attach import ByModule
from ferrule.engine.rank.model import Blueprint
from ferrule.engine.rank.step.operations import Description, Experts, HeadParts, head_part
from ferrule.engine.rank.stream.weights import StreamedWeights
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.formats.grouped import GroupedFormat
from ferrule.engine.weights.loading import (
    BytesRead,
    assign,
    check_complete,
    check_shape,
    fill,
    stored_bytes,
    targets,
)
from ferrule.engine.weights.matrix import PackedMatrix, pack, pack_numbers
from ferrule.engine.weights.pieces import Recipe, of_expert, of_matrix
from ferrule.engine.weights.slicing import Slicing
from ferrule.staging import Uploads


@dataclass
class Weights:
    """``matrices``: by the parameter's name, and those of stacked experts as ``NAME[i]``. ``vectors``: everything else,
    as float32. ``adapters``: by their layer's name, of each its number, its scale, and its matrices A and B. ``bytes``:
    what all of them take."""

    matrices: dict[str, PackedMatrix] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    adapters: dict[str, list[tuple[int, float, PackedMatrix, PackedMatrix]]] = field(default_factory=dict)
    bytes: int = 0

    def add(self, adapters: ByModule, dtype: torch.dtype) -> None:
        """Pack ``adapters`` as numbers of ``dtype``."""
        for module, by_number in adapters.items():
            found = self.adapters[module] = [
                (number, each.scale, pack_numbers(each.a, dtype), pack_numbers(each.b, dtype))
                for number, each in by_number.items()
            ]
            self.bytes += sum(a.bytes + b.bytes for _, _, a, b in found)

    def take(self, names: Sequence[str], made: Iterator[PackedMatrix], streamed: StreamedWeights | None) -> None:
        """Those that are ``made``, by their names, unless they are on disk already; see `load_weights`."""
        if streamed is not None:
            kept = [found for name in names if (found := streamed.kept(name)) is not None]
            if len(kept) == len(names):
                self.matrices.update(zip(names, kept, strict=True))
                return
        for name, found in zip(names, made, strict=True):
            if streamed is not None and name in streamed:
                self.matrices[name] = streamed.keep(name, found)
            else:
                self.matrices[name] = found
                self.bytes += found.bytes


def load_weights(
    blueprint: Blueprint,
    description: Description,
    checkpoint: Checkpoint,
    on_bytes: BytesRead,
    streamed: StreamedWeights | None = None,
    there: Mapping[str, PackedMatrix] = MappingProxyType({}),
) -> Weights:
    """``streamed``: takes the matrices of layers, which have no data then, until they are arranged. ``there``:
    matrices that this rank has already, by name. Raises `ModelError`
    where a tensor is missing or has another shape than the architecture says."""
    model, weights = blueprint.model, Weights()
    stacks = {
        name: each for each in description.operations if isinstance(each, Experts) for name in (each.gate_up, each.down)
    }
    wanted = dict(targets(model))
    check_complete([blueprint.aliases.get(name, name) for name in wanted], blueprint.made_of, checkpoint)
    sizes = {name: stored_bytes(_recipe(blueprint, name), blueprint.slicings.get(name), checkpoint) for name in wanted}
    total, done = sum(sizes.values()), 0
    on_bytes(0, total)
    shared = {id(tensor): name for name, tensor in wanted.items()}
    for name, empty in wanted.items():
        recipe, cut = _recipe(blueprint, name), blueprint.slicings.get(name)
        if name in there:
            weights.matrices[name] = there[name]
        elif name in stacks:
            names = [f"{name}[{index}]" for index in range(stacks[name].held)]
            weights.take(names, _stack(blueprint, name, recipe, cut, empty, stacks[name], checkpoint), streamed)
        elif name in description.by_head:
            parts = description.by_head[name]
            heads = range(empty.shape[0] // (parts.key + parts.value))
            names = [head_part(name, part, head) for head in heads for part in ("key", "value")]
            weights.take(names, _head_parts(blueprint, name, recipe, cut, empty, parts, checkpoint), streamed)
        elif name in description.matrices and empty.dim() == 2:
            weights.take([name], _matrix(blueprint, name, recipe, cut, empty, checkpoint), streamed)
        else:
            held = _filled(blueprint, name, recipe, cut, empty, checkpoint)
            assign(model, name, held)
            weights.vectors[name] = held.float()
            weights.bytes += weights.vectors[name].nbytes
        done += sizes[name]
        on_bytes(done, total)
    for name in description.matrices - weights.matrices.keys():  # tied: one tensor under two names
        tensor = dict(model.named_parameters(remove_duplicate=False)).get(name)
        if tensor is not None and id(tensor) in shared and shared[id(tensor)] in weights.matrices:
            weights.matrices[name] = weights.matrices[shared[id(tensor)]]
    return weights


def held_bytes(blueprint: Blueprint, checkpoint: Checkpoint) -> int:
    """Of this rank's part in memory, about: as it is stored where it is multiplied so, else as numbers."""
    total = 0
    for name, empty in targets(blueprint.model):
        recipe = blueprint.made_of.get(blueprint.aliases.get(name, name))
        if recipe is None:  # missing, which is said when it is loaded
            continue
        stored = [checkpoint.tensors[key] for keys in recipe.sources.values() for key in keys]
        if all(isinstance(each.format, GroupedFormat) for each in stored):
            total += stored_bytes(recipe, blueprint.slicings.get(name), checkpoint)
        else:
            total += empty.numel() * blueprint.dtype.itemsize
    return total


def _recipe(blueprint: Blueprint, name: str) -> Recipe:
    return blueprint.made_of[blueprint.aliases.get(name, name)]


def _filled(
    blueprint: Blueprint, name: str, recipe: Recipe, cut: Slicing | None, empty: Tensor, checkpoint: Checkpoint
) -> Tensor:
    held = torch.empty(empty.shape, dtype=empty.dtype)
    fill(held, blueprint.aliases.get(name, name), recipe, cut, checkpoint, blueprint.model, Uploads(held.device))
    return held


def _matrix(
    blueprint: Blueprint, name: str, recipe: Recipe, cut: Slicing | None, empty: Tensor, checkpoint: Checkpoint
) -> Iterator[PackedMatrix]:
    pieces = of_matrix(recipe, cut, checkpoint)
    if pieces is None:
        matrix = pack_numbers(_filled(blueprint, name, recipe, cut, empty, checkpoint), blueprint.dtype)
    else:
        matrix = pack(pieces, checkpoint, blueprint.dtype, 0 if cut is None else cut.pad)
    check_shape(matrix.shape, empty, name, checkpoint)
    yield matrix


def _head_parts(
    blueprint: Blueprint,
    name: str,
    recipe: Recipe,
    cut: Slicing | None,
    empty: Tensor,
    parts: HeadParts,
    checkpoint: Checkpoint,
) -> Iterator[PackedMatrix]:
    """Of each head the keys' part, turned and therefore as numbers, and the values' part. Heads are read one by one."""
    size = parts.key + parts.value
    start, of = (0, empty.shape[0]) if cut is None else (cut.ranges[0][0], cut.of)
    for head in range(empty.shape[0] // size):
        first = start + head * size
        pieces = of_matrix(recipe, Slicing(0, of, ((first + parts.key, first + size),)), checkpoint)
        packed = pieces is not None and isinstance(pieces[0].weight.format, GroupedFormat)
        read = parts.key if packed else size
        own = Slicing(0, of, ((first, first + read),))
        rows = _filled(blueprint, name, recipe, own, empty[:read], checkpoint)
        yield pack_numbers(rows[: parts.key].T, blueprint.dtype)
        if pieces is not None and packed:
            yield pack(pieces, checkpoint, blueprint.dtype)
        else:
            yield pack_numbers(rows[parts.key :], blueprint.dtype)


def _stack(
    blueprint: Blueprint,
    name: str,
    recipe: Recipe,
    cut: Slicing | None,
    empty: Tensor,
    experts: Experts,
    checkpoint: Checkpoint,
) -> Iterator[PackedMatrix]:
    for expert in range(experts.held):
        one = empty[expert].T if experts.transposed else empty[expert]
        pieces = of_expert(recipe, cut, expert, experts.transposed, checkpoint)
        if pieces is None:  # nor of any other
            for each in _filled(blueprint, name, recipe, cut, empty, checkpoint):
                yield pack_numbers(each.T if experts.transposed else each, blueprint.dtype)
            return
        matrix = pack(pieces, checkpoint, blueprint.dtype)
        check_shape(matrix.shape, one, name, checkpoint)
        yield matrix
