"""Weights that a rank holds packed, in the place where a module has a tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ferrule.errors import ModelError


class Packed(ABC):
    """A linear layer's weight that is held packed. It stands where a module has its weight: torch calls `multiply` for
    ``functional.linear``. ``shape`` (out, in) as numbers; ``dtype`` of products; ``bytes`` held; ``kernel``: by what is
    multiplied, for people."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    bytes: int
    kernel: str = "native code"

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """``x`` (..., in) times the transposed weight: (..., out)."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor:
        if function is not functional.linear:
            name = getattr(function, "__name__", function)
            raise ModelError(f"a packed weight is used by {name}, which needs one that is held as numbers")
        return _linear(*args, **kwargs or {})


def _linear(input: Tensor, weight: Packed, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - as torch calls it
    y = weight.multiply(input)
    return y if bias is None else y + bias


class PackedStack(ABC):
    """Matrices of a layer's experts that are held packed. ``shape`` (experts, out, in) as numbers; ``bytes`` held;
    ``kernel`` as of `Packed`."""

    shape: tuple[int, int, int]
    bytes: int
    kernel: str = "native code"

    @abstractmethod
    def multiply(self, x: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
        """``x`` (rows, in), each row times the transposed matrix of its expert: (rows, out). ``experts`` (rows,): in
        ascending order; ``ends`` (experts,), int32: of each expert's rows. What rows become that are behind the last
        of ``ends`` is not said."""
