"""Read adapters' matrices, cut as the layers that they change, and attach them to these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ferrule.engine.adapters import WEIGHTS, Pair, read_pairs
from ferrule.engine.devices import Device
from ferrule.engine.options import Adapter
from ferrule.engine.rank.adapters.lora import Adapters, Lora
from ferrule.engine.rank.layers import multiplies
from ferrule.engine.rank.recurrent import is_mixer
from ferrule.engine.rank.vision.parts import tower_of
from ferrule.engine.weights.loading import recipes
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError

ByModule = dict[str, dict[int, Lora]]
"""By the layer's name and the adapter's number."""


def read_adapters(
    model: nn.Module, whole: Any, slicings: Mapping[str, Slicing], adapters: Sequence[Adapter], dtype: torch.dtype
) -> ByModule:
    """The matrices of ``adapters``, whose numbers are their places from 1, in host memory: those of the layers of
    ``model``, this rank's part of ``whole``, both without memory. ``slicings``: of its parameters. Raises `ModelError`
    for an adapter of another model, and for one of layers that cannot be adapted, before any matrix is read."""
    found = [(each, _layers(each, whole)) for each in adapters]
    for adapter, layers in found:
        for name, pair in layers.items():
            _check(adapter.name, pair, name, model, whole)
    by_module: ByModule = {}
    for number, (adapter, layers) in enumerate(found, 1):
        with safe_open(Path(adapter.path) / WEIGHTS, framework="pt") as file:
            for name, pair in layers.items():
                if _held(model, name) is not None:
                    cut = slicings.get(f"{name}.weight")
                    a, b = _part(file.get_slice(pair.a.name), cut, 1), _part(file.get_slice(pair.b.name), cut, 0)
                    lora = Lora(a.to(dtype).contiguous(), b.to(dtype).contiguous(), pair.scale)
                    by_module.setdefault(name, {})[number] = lora
    return by_module


def attach(model: nn.Module, by_module: ByModule, device: Device) -> Adapters:
    """Have the layers of ``model`` compute with what `read_adapters` found, on ``device``."""
    attached = Adapters()
    for name, by_number in by_module.items():
        there = {
            number: Lora(device.upload(each.a), device.upload(each.b), each.scale) for number, each in by_number.items()
        }
        attached.adapt(name, model.get_submodule(name), there)
    return attached


def _layers(adapter: Adapter, whole: Any) -> dict[str, Pair]:
    """What ``adapter`` adds, by the names of layers in ``whole``; its own may be those of stored weights."""
    pairs = {f"{pair.module}.weight": pair for pair in read_pairs(adapter)}
    found: dict[str, Pair] = {}
    for name, recipe in recipes(whole, list(pairs)).items():
        keys = [key for sources in recipe.sources.values() for key in sources]
        if recipe.converter is not None:
            raise ModelError(
                f"adapter {adapter.name!r}: {pairs[keys[0]].a.name} adapts a part of {name}, a stack of experts or "
                "a fused projection, which is not run here; adapt attention and dense layers"
            )
        found |= {name.removesuffix(".weight"): pairs.pop(key) for key in keys}
    if pairs:
        tensor = next(iter(pairs.values())).a.name
        raise _of_another(adapter.name, f"{tensor} is for a layer that {type(whole).__name__} does not have")
    return found


def _check(adapter: str, pair: Pair, name: str, model: nn.Module, whole: Any) -> None:
    linear, held = whole.get_submodule(name), _held(model, name)
    parent = whole.get_submodule(name.rpartition(".")[0])
    if name.startswith(tuple(f"{part}." for part in tower_of(whole))):
        raise ModelError(
            f"adapter {adapter!r}: {pair.a.name} adapts {name}, a part of what sees, which is not adapted here; adapt "
            "the language model"
        )
    if linear is whole.get_output_embeddings() or isinstance(linear, nn.Embedding):
        raise ModelError(
            f"adapter {adapter!r}: {pair.a.name} adapts {name}; embeddings and output layers are not adapted here"
        )
    if not isinstance(linear, nn.Linear) or is_mixer(parent) or (held is not None and not multiplies(held)):
        raise ModelError(
            f"adapter {adapter!r}: {pair.a.name} adapts {name} ({type(linear).__name__} of {type(parent).__name__}), "
            "which does more than multiply every token by its weight; such layers are not adapted here"
        )
    expected = linear.out_features, linear.in_features
    for tensor, given, size in ((pair.a, pair.a.shape[1], expected[1]), (pair.b, pair.b.shape[0], expected[0])):
        if given != size:
            raise _of_another(adapter, f"{tensor.name} is for {given} features, where {name} has {size}")


def _of_another(adapter: str, why: str) -> ModelError:
    return ModelError(f"adapter {adapter!r} does not fit this model: {why}; take the adapter of this base, or its base")


def _held(model: nn.Module, name: str) -> nn.Module | None:
    """The layer, where this rank's stage has it."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _part(stored: Any, cut: Slicing | None, dim: int) -> Tensor:
    """Of matrix A (``dim`` 1) or B (0) what goes with a ``cut`` of the layer's weight."""
    if cut is None or cut.dim != dim:
        return stored[:]  # type: ignore[no-any-return]
    ranges = [slice(start, stop) for start, stop in cut.ranges]
    return torch.cat([stored[:, each] if dim else stored[each] for each in ranges], dim=dim)
