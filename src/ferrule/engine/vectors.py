"""Vectors of texts: what is done to them after pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import float32_of
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ModelError

if TYPE_CHECKING:
    from ferrule.engine.types import Vector
    from ferrule.model.pooling import Activation, Embedding

WEIGHT, BIAS = "linear.weight", "linear.bias"


def normalized(vector: Vector) -> Vector:
    """``vector`` with length 1; zeros stay."""
    length = np.float32(np.linalg.norm(vector))
    return np.asarray(vector / length, dtype=np.float32) if length else vector


@dataclass(frozen=True)
class Dense:
    """Dense layer after pooling, in float32: ``weight`` (outputs, inputs), ``bias`` (outputs,) or None."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    activation: Activation

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of ``vectors`` (texts, inputs): (texts, outputs)."""
        found = vectors @ self.weight.T
        return _ACTIVATIONS[self.activation](found if self.bias is None else found + self.bias)


_ACTIVATIONS: Mapping[Activation, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "Sigmoid": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
}


def read_dense(directory: Path, embedding: Embedding, width: int) -> tuple[Dense, ...]:
    """The dense layers of a model whose hidden states have ``width`` numbers. Raises `ModelError` where their files
    are missing or do not fit."""
    found = []
    for layer in embedding.dense:
        folder = directory / layer.folder
        with Checkpoint(folder) as checkpoint:
            stored = checkpoint.stored
            numbers = {name: float32_of(checkpoint.array(name), stored[name].dtype) for name in stored}
        weight, bias = numbers.get(WEIGHT), numbers.get(BIAS)
        if weight is None or weight.ndim != 2 or weight.shape[1] != width:
            shape = "none" if weight is None else f"one of shape {weight.shape}"
            raise ModelError(f"{folder} must hold {WEIGHT} of {width} inputs, and has {shape}; download it again")
        width = weight.shape[0]
        if bias is not None and bias.shape != (width,):
            raise ModelError(f"{folder} must hold {BIAS} of {width} numbers, and has {bias.shape}; download it again")
        found.append(Dense(weight, bias, layer.activation))
    return tuple(found)


def finished(vectors: Sequence[Vector], layers: Sequence[Dense], *, normalize: bool) -> list[Vector]:
    """Pooled ``vectors`` after all dense layers; with ``normalize`` of length 1."""
    if layers and vectors:
        together = np.stack(vectors)
        for layer in layers:
            together = layer(together)
        vectors = list(together)
    return [normalized(each) for each in vectors] if normalize else list(vectors)
