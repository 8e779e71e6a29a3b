"""All weight formats, and which of them the tensors of a checkpoint have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.engine.weights.formats.awq import Awq
from ferrule.engine.weights.formats.bitsandbytes import BitsAndBytes
from ferrule.engine.weights.formats.compressed_tensors import CompressedTensors
from ferrule.engine.weights.formats.format import Format, StoredTensors, Weight
from ferrule.engine.weights.formats.fp8 import Fp8
from ferrule.engine.weights.formats.gptq import Gptq
from ferrule.engine.weights.formats.mlx import Mlx
from ferrule.engine.weights.formats.mxfp4 import Mxfp4
from ferrule.engine.weights.formats.plain import Plain
from ferrule.model.headers import Stored

FORMATS: list[Format] = [
    Gptq(), Awq(), Mlx(), CompressedTensors(), Fp8(), Mxfp4(), BitsAndBytes(), Plain(),
]  # fmt: skip
"""In the order in which they are asked; the last one takes whatever is left."""


def known_methods() -> frozenset[str]:
    """The values of ``quant_method`` in config.json that some format reads."""
    return frozenset().union(*(each.methods for each in FORMATS))


def recognise(stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors) -> dict[str, Weight]:
    """Every weight of a checkpoint by its key. Raises `ModelError` where one is damaged or of no known dtype."""
    left, found = dict(stored), {}
    for each in FORMATS:
        for weight in each.recognise(left, settings, source):
            found[weight.key] = weight
            for part in weight.parts.values():
                left.pop(part.name, None)  # experts that are stored in a stack share their parts
    return found
