"""Fill a model's empty parameters with this rank's slices of a checkpoint.

transformers keeps experts stacked in one parameter while checkpoints store them one by one, and renames keys of some
architectures; its conversion tables say how. Stacking and concatenating are understood here, so that only the slices
this rank holds are read; any other conversion is done on the whole tensors by transformers and then cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from ferrule.engine.weights.checkpoint import Checkpoint, some
from ferrule.engine.weights.formats import Weight
from ferrule.engine.weights.formats.packed import Packed, PackedStack
from ferrule.engine.weights.pieces import Recipe, within
from ferrule.engine.weights.slicing import Slicing
from ferrule.engine.weights.stack import pack_stack
from ferrule.errors import ModelError
from ferrule.staging import Uploads

BytesRead = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all)."""


@dataclass(frozen=True)
class Packs:
    """Modules that can do with packed weights: ``products`` only multiply by their ``weight``; ``experts`` have stacks
    of matrices, and compute with packed ones after ``run_experts``."""

    products: Callable[[nn.Module], bool]
    experts: Callable[[nn.Module], bool]
    run_experts: Callable[[nn.Module], None]


def recipes(model: Any, keys: list[str]) -> dict[str, Recipe]:
    """Checkpoint keys that make each parameter of ``model`` (a complete model, as transformers builds it)."""
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    names = model.state_dict()
    made: dict[str, Recipe] = {}
    for key in sorted(keys, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, names)
        if name not in names and key in names:
            name, pattern = key, None
        if name not in names:
            continue  # e.g. multi-token prediction layers, which the model does not have
        converter = by_pattern.get(pattern)
        targets = converter.target_patterns if converter is not None else [name]
        for target in targets:  # one stored tensor may make several parameters; `name` is the first of them
            recipe = made.setdefault(name.replace(targets[0], target), Recipe(converter))
            recipe.sources.setdefault(pattern or key, []).append(key)
    return made


def load(
    model: nn.Module,
    made_of: Mapping[str, Recipe],
    slicings: Mapping[str, Slicing],
    aliases: Mapping[str, str],
    checkpoint: Checkpoint,
    on_bytes: BytesRead,
    device: torch.device,
    packs: Packs,
) -> int:
    """Give every parameter and persistent buffer of ``model`` memory and its slice of the checkpoint.

    ``aliases`` maps a parameter's name in ``model`` to its name in ``made_of`` where they differ. Returns the bytes
    held. Raises `ModelError` where a tensor is missing or has another shape than the architecture says.
    """
    wanted = dict(targets(model))
    check_complete([aliases.get(name, name) for name in wanted], made_of, checkpoint)
    sizes = {name: stored_bytes(made_of[aliases.get(name, name)], slicings.get(name), checkpoint) for name in wanted}
    uploads = Uploads(device)
    total, done, held_bytes = sum(sizes.values()), 0, 0
    on_bytes(0, total)
    for name, empty in wanted.items():
        source, cut = aliases.get(name, name), slicings.get(name)
        recipe = made_of[source]
        parent, _, leaf = name.rpartition(".")
        module = model.get_submodule(parent)
        packed: Packed | PackedStack | None = None
        if leaf == "weight" and packs.products(module):
            weight = whole_weight(recipe, checkpoint)
            packed = None if weight is None else weight.format.pack(weight, cut, checkpoint, empty.dtype, uploads)
        elif empty.dim() == 3 and packs.experts(module):
            turned = bool(module.is_transposed)
            packed = pack_stack(recipe, cut, empty.shape[0], turned, checkpoint, empty.dtype, uploads)
            if packed is not None:
                empty = empty.transpose(1, 2) if turned else empty
                packs.run_experts(module)
        if packed is not None:
            check_shape(packed.shape, empty, source, checkpoint)
            del module._parameters[leaf]
            setattr(module, leaf, packed)
            held_bytes += packed.bytes
        else:
            _check_fits(empty, source, recipe, cut, checkpoint)  # no memory for what a wrong configuration says
            held = torch.empty(empty.shape, dtype=empty.dtype, device=device)
            fill(held, source, recipe, cut, checkpoint, model, uploads)
            assign(model, name, held)
            held_bytes += held.numel() * held.element_size()
        done += sizes[name]
        on_bytes(done, total)
    return held_bytes


def whole_weight(recipe: Recipe, checkpoint: Checkpoint) -> Weight | None:
    """The stored weight that makes a parameter by itself, if one does."""
    if recipe.converter is not None:
        return None
    (keys,) = recipe.sources.values()
    return checkpoint.tensors[keys[-1]]


def stored_bytes(recipe: Recipe, cut: Slicing | None, checkpoint: Checkpoint) -> int:
    """Of what is read for a parameter."""
    whole = sum(checkpoint.tensors[key].bytes for keys in recipe.sources.values() for key in keys)
    return whole if cut is None else whole * (cut.size - cut.pad) // cut.of


def check_shape(found: tuple[int, ...], empty: Tensor, name: str, checkpoint: Checkpoint) -> None:
    if tuple(found) != tuple(empty.shape):
        raise ModelError(
            f"{name} in {checkpoint.directory} does not fit the architecture in config.json: expected shape "
            f"{tuple(empty.shape)}, the file has {tuple(found)}"
        )


def _check_fits(empty: Tensor, name: str, recipe: Recipe, cut: Slicing | None, checkpoint: Checkpoint) -> None:
    """Raise `ModelError` where the weight that makes a parameter by itself has another shape than that."""
    if recipe.converter is not None:
        return
    (keys,) = recipe.sources.values()
    whole, expected = checkpoint.tensors[keys[-1]].shape, _whole(empty, cut)
    if whole != expected:
        raise ModelError(
            f"{name} in {checkpoint.directory} does not fit the architecture in config.json: expected shape "
            f"{expected}, the file has {whole}"
        )


def _whole(part: Tensor, cut: Slicing | None) -> tuple[int, ...]:
    """The shape of what ``part`` is a ``cut`` of."""
    shape = tuple(part.shape)
    return shape if cut is None else (*shape[: cut.dim], cut.of, *shape[cut.dim + 1 :])


def check_complete(names: Iterable[str], made_of: Mapping[str, Recipe], checkpoint: Checkpoint) -> None:
    """Raise `ModelError` where the checkpoint makes nothing of some of these parameters."""
    missing = [name for name in names if name not in made_of]
    if missing:
        raise ModelError(f"{checkpoint.directory} has no weights for {some(missing)}; download the model again")


def targets(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters, then persistent buffers, each once (tied ones share a tensor)."""
    persistent = model.state_dict().keys()
    return [*model.named_parameters(), *((name, b) for name, b in model.named_buffers() if name in persistent)]


def assign(model: nn.Module, name: str, value: Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    module = model.get_submodule(parent)
    if leaf in module._parameters:
        old = module._parameters[leaf]
        new = nn.Parameter(value, requires_grad=False)
        new._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers' mark: never draw it at random
        for other in model.modules():  # tied parameters are one object in several modules
            for other_leaf, parameter in other._parameters.items():
                if parameter is old:
                    other._parameters[other_leaf] = new
    else:
        value._is_hf_initialized = True  # type: ignore[attr-defined]
        module._buffers[leaf] = value


def fill(
    held: Tensor,
    name: str,
    recipe: Recipe,
    cut: Slicing | None,
    checkpoint: Checkpoint,
    model: nn.Module,
    uploads: Uploads,
) -> None:
    """Read into ``held``, which is on the device of ``uploads``."""
    try:
        if recipe.converter is None:
            (keys,) = recipe.sources.values()
            weight = checkpoint.tensors[keys[-1]]
            if weight.is_matrix and weight.shape == _whole(held, cut):
                for start, stop, numbers in checkpoint.rows(keys[-1], cut):
                    uploads.write(held[start:stop], numbers)
                if cut is not None and cut.pad:
                    held[-cut.pad :].zero_()
            else:
                _copy_parts(held, checkpoint.read(keys[-1], cut), cut, weight.shape, uploads)
            return
        operations = recipe.converter.operations
        kinds = [type(operation) for operation in operations]
        stacked = MergeModulelist in kinds[:1] and operations[0].dim == 0
        if stacked and (kinds == [MergeModulelist] or (kinds == [MergeModulelist, Concatenate])):
            joined_dim = operations[1].dim if len(operations) == 2 else None
            _fill_stacked(held, recipe, cut, joined_dim, checkpoint, uploads)
        else:
            _fill_converted(held, name, recipe, cut, checkpoint, model, uploads)
    except RuntimeError as error:  # torch: shapes that do not match
        raise ModelError(
            f"{name} in {checkpoint.directory} does not fit the architecture in config.json: {error}"
        ) from None


def _copy_parts(
    held: Tensor, parts: list[Tensor], cut: Slicing | None, whole: tuple[int, ...], uploads: Uploads
) -> None:
    if cut is None:
        (part,) = parts
        uploads.write(held, part)
        return
    if len(whole) <= cut.dim or whole[cut.dim] != cut.of or cut.shape(whole) != tuple(held.shape):
        raise RuntimeError(f"expected shape {_whole(held, cut)}, the file has {whole}")
    start = 0
    for part in parts:
        length = part.shape[cut.dim]
        uploads.write(held.narrow(cut.dim, start, length), part)
        start += length
    if cut.pad:
        held.narrow(cut.dim, start, cut.pad).zero_()


def _fill_stacked(
    held: Tensor, recipe: Recipe, cut: Slicing | None, joined_dim: int | None, ckpt: Checkpoint, uploads: Uploads
) -> None:
    """Experts stacked along dim 0 of ``held``, each of one tensor per source pattern, joined along ``joined_dim``."""
    patterns = [pattern for pattern in recipe.converter.source_patterns if pattern in recipe.sources]
    by_expert = cut is not None and cut.dim == 0
    expected = cut.of if cut is not None and by_expert else held.shape[0]
    for pattern in patterns:
        if len(recipe.sources[pattern]) != expected:
            raise RuntimeError(f"expected {expected} experts, the checkpoint has {len(recipe.sources[pattern])}")
    chosen = list(range(expected))
    if cut is not None and by_expert:
        chosen = [expert for start, stop in cut.ranges for expert in range(start, stop)]
    for row, expert in enumerate(chosen):
        written = offset = 0
        for pattern in patterns:
            key = recipe.sources[pattern][expert]
            shape = ckpt.tensors[key].shape
            if joined_dim is None:
                inner = None if cut is None or by_expert else Slicing(cut.dim - 1, cut.of, cut.ranges)
                _copy_parts(held[row], ckpt.read(key, inner), inner, shape, uploads)
                continue
            along = joined_dim - 1
            inner = within(cut, joined_dim, offset, shape)
            parts = ckpt.read(key, inner)
            length = sum(part.shape[along] for part in parts) if inner and inner.dim == along else shape[along]
            _copy_parts(held[row].narrow(along, written, length), parts, inner, shape, uploads)
            written += length
            offset += shape[along]
        if cut is not None and cut.dim == joined_dim and offset != cut.of:
            raise RuntimeError(f"expected {cut.of} rows an expert, the checkpoint has {offset}")


class _Uncut:
    """``model`` as conversions ask it, for the shape of the parameter that they make: ``name``, which is ``whole``
    before it is cut."""

    def __init__(self, model: nn.Module, name: str, whole: Tensor) -> None:
        self._model, self._name, self._whole = model, name, whole

    def get_parameter(self, name: str) -> Tensor:
        return self._whole if name == self._name else self._model.get_parameter(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _fill_converted(
    held: Tensor,
    name: str,
    recipe: Recipe,
    cut: Slicing | None,
    checkpoint: Checkpoint,
    model: nn.Module,
    uploads: Uploads,
) -> None:
    tensors: Any = {pattern: [checkpoint.read(key)[0] for key in keys] for pattern, keys in recipe.sources.items()}
    converter = recipe.converter
    for operation in converter.operations:
        tensors = operation.convert(
            tensors,
            source_patterns=converter.source_patterns,
            target_patterns=converter.target_patterns,
            full_layer_name=name,
            model=_Uncut(model, name, torch.empty(_whole(held, cut), dtype=held.dtype, device="meta")),
            config=model.config,
            missing_keys=None,
        )
    value = next((v for pattern, v in tensors.items() if pattern in name), None)
    if value is None:
        raise RuntimeError(f"the conversion of {sorted(recipe.sources)} does not give it")
    whole = value[0] if isinstance(value, list) else value
    parts = [whole] if cut is None else [whole.narrow(cut.dim, a, b - a) for a, b in cut.ranges]
    _copy_parts(held, parts, cut, tuple(whole.shape), uploads)
