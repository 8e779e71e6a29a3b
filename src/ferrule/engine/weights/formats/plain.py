"""Weights that are stored as the numbers they are: safetensors' own dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.engine.weights.bits import pick
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.parts import matrix_of
from ferrule.engine.weights.groups import Rectangle
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError
from ferrule.model.headers import Stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ferrule.staging import Uploads

TORCH_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""torch's name for each dtype of safetensors that it can compute with."""


class Plain:
    """`Format`: one part, the tensor itself."""

    name = "plain"
    methods: frozenset[str] = frozenset()

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        for tensor in stored.values():
            if tensor.dtype not in TORCH_DTYPES:
                raise ModelError(
                    f"{tensor.name} has the dtype {tensor.dtype!r}, which is not run here; use weights in bfloat16, "
                    "float16 or float32"
                )
        return [Weight(key, tensor.shape, self, {"weight": tensor}) for key, tensor in stored.items()]

    def border(self, weight: Weight, dim: int) -> int:
        return 1

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        return source.read_stored(weight.key, cut)

    def numbers(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> Tensor:
        import torch

        (stored,) = weight.parts.values()
        array = matrix_of(weight, "weight", source, index)
        some = np.array(pick(pick(array, part.rows, 0), part.columns, 1))  # a copy, which may be written to
        return torch.from_numpy(some).view(getattr(torch, TORCH_DTYPES[stored.dtype]))

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, uploads: Uploads
    ) -> None:
        return None  # torch's own product is as good as any of ours
