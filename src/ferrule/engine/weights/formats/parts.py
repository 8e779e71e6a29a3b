"""The stored parts of packed weights: found, checked, and read as numbers. Errors name the tensor and the cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import float32_of
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import GroupedWeight
from ferrule.errors import ModelError
from ferrule.model.headers import Stored
from ferrule.model.packing import Scale

SCALES: Mapping[str, Scale] = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F8_E8M0": "e8m0", "U8": "e8m0"}
"""Lossless representation of scales by their stored dtype; bytes are the exponents of E8M0."""


def modules(stored: Mapping[str, Stored], leaf: str) -> Iterator[str]:
    """The names of modules that have a tensor ``leaf``."""
    end = f".{leaf}"
    return (name.removesuffix(end) for name in stored if name.endswith(end))


def find(stored: Mapping[str, Stored], name: str, beside: str, *dtypes: str, dimensions: int | None = None) -> Stored:
    """Tensor ``name``, which ``beside`` is of no use without. Raises `ModelError` where it is not there, is of none of
    ``dtypes``, or has not that many ``dimensions``."""
    found = stored.get(name)
    if found is None:
        raise ModelError(f"{beside} is stored packed, but {name} is missing; download the model again")
    if found.dtype not in dtypes:
        raise ModelError(
            f"{name} has the dtype {found.dtype}, where {' or '.join(dtypes)} is needed; its files are damaged, or of "
            "a format that is not run here: download the model again, or use its bfloat16 weights"
        )
    if dimensions is not None and len(found.shape) != dimensions:
        raise misfit(found, f"{dimensions} dimensions")
    return found


def misfit(part: Stored, needed: str) -> ModelError:
    return ModelError(
        f"{part.name} has the shape {list(part.shape)}, where {needed} would fit; its files are damaged, or "
        "config.json tells other bits or groups than they have: download the model again, or use its bfloat16 weights"
    )


def check_shape(part: Stored, *shapes: tuple[int, ...]) -> Stored:
    if part.shape not in shapes:
        raise misfit(part, " or ".join(str(list(shape)) for shape in shapes))
    return part


def beside(stored: Mapping[str, Stored], module: str, *leaves: str) -> dict[str, Stored]:
    """Those of ``leaves`` that ``module`` has: what belongs to its weight and is not needed for its numbers."""
    return {leaf: stored[name] for leaf in leaves if (name := f"{module}.{leaf}") in stored}


def whole_number(settings: Mapping[str, Any], name: str, default: int | None = None, where: str = "") -> int:
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(
            f"config.json: {where or 'quantization_config'} has {name} {value!r}, which is no whole number"
        )
    return value


def matrix_of(weight: Weight, role: str, source: StoredTensors, index: int = 0) -> NDArray[Any]:
    """The part ``role`` of one matrix of ``weight``: of number ``index`` where it is a stack. Not read yet."""
    array: NDArray[Any] = source.array(weight.parts[role].name)
    if isinstance(weight, GroupedWeight) and weight.place is not None:
        index = weight.place
    elif len(weight.shape) != 3:
        return array
    one: NDArray[Any] = array[index]
    return one


def numbers(array: NDArray[Any], part: Stored) -> NDArray[np.float32]:
    """Scales or offsets as numbers; bytes are the exponents of E8M0."""
    return float32_of(np.asarray(array), "F8_E8M0" if part.dtype == "U8" else part.dtype)
