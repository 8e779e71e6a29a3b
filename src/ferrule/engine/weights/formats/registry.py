"""All weight formats, and which of them the tensors of a checkpoint have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.engine.weights.formats.format import Format, Weight
from ferrule.engine.weights.formats.plain import Plain
from ferrule.model.headers import Stored

FORMATS: list[Format] = [Plain()]
"""In the order in which they are asked; the last one takes whatever is left."""


def known_methods() -> frozenset[str]:
    """The values of ``quant_method`` in config.json that some format reads."""
    return frozenset().union(*(each.methods for each in FORMATS))


def recognise(stored: Mapping[str, Stored], settings: Mapping[str, Any]) -> dict[str, Weight]:
    """Every weight of a checkpoint by its key. Raises `ModelError` where one is damaged or of no known dtype."""
    left, found = dict(stored), {}
    for each in FORMATS:
        for weight in each.recognise(left, settings):
            found[weight.key] = weight
            for part in weight.parts.values():
                del left[part.name]
    return found
