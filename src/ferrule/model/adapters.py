"""Memory of LoRA adapters, counted with the layers that they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ferrule.model.holding import shared_inputs
from ferrule.model.layer import Weights
from ferrule.model.names import layer_of
from ferrule.model.packing import Numbers, together
from ferrule.model.spec import ModelSpec


def with_adapters(spec: ModelSpec, tensors: Iterable[tuple[str, int]]) -> ModelSpec:
    """``spec`` with ``tensors`` of adapters, in the engine's memory alone: what the model's own files hold is the same.

    ``tensors``: names as PEFT writes them, and how many numbers each has. They are cut as their layers are: where
    outputs are shared out only ``lora_B``, where inputs are only ``lora_A``. They are held in what is computed in."""
    counts: Counter[tuple[int, bool]] = Counter()
    for name, count in tensors:
        place = layer_of(name)
        if place is not None:
            counts[place[0], (".lora_A." in name) == shared_inputs(name)] += count
    width = round(spec.activation_bytes)
    decoder = list(spec.decoder)
    for index in sorted({layer for layer, _ in counts}):
        if index < len(decoder):  # what is of another model is told by name when it is loaded
            whole, cut = counts[index, False], counts[index, True]
            pieces = together([Numbers(width, cut=False, count=whole), Numbers(width, cut=True, count=cut)])
            added = Weights(pieces=pieces)
            weights = decoder[index].weights
            decoder[index] = replace(decoder[index], weights=replace(weights, attention=weights.attention + added))
    return replace(spec, decoder=tuple(decoder))
