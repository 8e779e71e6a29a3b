"""The protocol of a vendor's kernel: a product of packed weights by a library's own kernel, in its own layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ferrule.engine.weights.device_codes import DeviceCodes, Held
from ferrule.model.packing import GroupLayout

Prepared = tuple[Tensor, ...]


@dataclass(frozen=True)
class Form:
    """A matrix on a device, but for its numbers. ``group``: how many columns share a scale (0: a whole row).
    ``scale``: how scales and offsets are held; ``nested``: as whole multiples. ``dtype``: of products."""

    layout: GroupLayout
    outputs: int
    columns: int
    group: int
    scale: torch.dtype
    nested: bool
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, packed: DeviceCodes, dtype: torch.dtype) -> Form:
        held = packed.held
        outputs, groups = held.scales.shape
        group = 0 if groups == 1 else packed.columns // groups
        nested = held.supers is not None
        return cls(packed.layout, outputs, packed.columns, group, held.scales.dtype, nested, dtype, packed.device)


class Vendor(Protocol):
    """``name``: for people."""

    name: str

    def fits(self, form: Form) -> bool:
        """Whether it multiplies by matrices of ``form`` without rounding what is stored, and is there."""
        ...

    def bytes(self, form: Form) -> int:
        """Size of what `prepare` makes."""
        ...

    def prepare(self, held: Held, form: Form) -> Prepared:
        """The matrix in the vendor's layout: tensors that share no memory with ``held``, which is dropped."""
        ...

    def multiply(self, prepared: Prepared, form: Form, x: Tensor) -> Tensor:
        """``x`` (rows, columns), contiguous and of the form's type, times the transposed matrix: (rows, outputs). It
        waits for nothing: it is called while steps are captured."""
        ...


def has_kernel(name: str, device: torch.device) -> bool:
    """Whether this torch has a kernel of its operation ``aten::name`` for ``device``."""
    key = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}.get(device.type)
    if key is None or not hasattr(torch.ops.aten, name):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))
