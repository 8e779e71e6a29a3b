"""Tensors as the fabric wants them: in host memory, without gaps, of an element type that it moves.

Where a tensor is not like that, a *buffer* takes its place, and a *finish* copies the result home afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ferrule._native import DTYPES
from ferrule.fabric.arrays import tensor_finder
from ferrule.staging import ACCELERATORS

Finish = Callable[[], object]

place_of = tensor_finder()
"""Address, count and type code of a tensor that the fabric takes as it is; None for any other."""

MOVED = frozenset(getattr(torch, name) for name in DTYPES)
"""The element types that the fabric moves and reduces."""


def check(t: Tensor) -> None:
    if not t.is_cpu:
        raise off_host(t)
    check_dense(t)


def off_host(t: Tensor) -> TypeError:
    return TypeError(
        f"the tensor is on {t.device}; the backend ferrule moves tensors that are all in host memory or all on "
        f"{', '.join(ACCELERATORS[:-1])} or {ACCELERATORS[-1]}, so pass x.cpu()"
    )


def check_dense(t: Tensor) -> None:
    if t.layout is not torch.strided:
        raise TypeError(f"the backend ferrule moves dense tensors, not {t.layout}; pass x.to_dense()")


def line_of(t: Tensor) -> Tensor:
    """The elements of a tensor without gaps in one line, as bytes where the fabric does not know their type."""
    line = t.detach().view(-1)
    return line if line.dtype in MOVED else line.view(torch.uint8)


def source(t: Tensor) -> Tensor:
    """Tensor to read in the place of ``t``; its shape may be another."""
    if place_of(t) is not None:
        return t
    check(t)
    return line_of(t.contiguous())


def target(t: Tensor, *, read: bool = False) -> tuple[Tensor, Finish | None]:
    """Tensor to write in the place of ``t``, after it was ``read`` or not; its shape may be another."""
    if place_of(t) is not None:
        return t, None
    check(t)
    if t.is_contiguous():
        return line_of(t), None
    buffer = t.detach().contiguous() if read else torch.empty_like(t, memory_format=torch.contiguous_format)
    return line_of(buffer), lambda: t.detach().copy_(buffer)


def widest(tensors: Sequence[Tensor]) -> int:
    return max(t.numel() for t in tensors)


def pack(tensors: Sequence[Tensor], width: int) -> Tensor:
    """The elements of all tensors, each filled up to ``width`` elements; no copy where they lie so."""
    together = _joined(tensors, width)
    if together is not None:
        return together
    rows = tensors[0].new_empty(len(tensors), width)
    for row, t in zip(rows.unbind(), tensors, strict=True):
        check(t)
        row[: t.numel()].copy_(t.detach().reshape(-1))
    return rows


def unpacked(tensors: Sequence[Tensor], width: int) -> tuple[Tensor, Finish | None]:
    """``width`` elements per tensor to write, and how they get into the tensors."""
    together = _joined(tensors, width)
    if together is not None:
        return together, None
    for t in tensors:
        check(t)
    rows = tensors[0].new_empty(len(tensors), width)

    def copy() -> None:
        for row, t in zip(rows.unbind(), tensors, strict=True):
            t.detach().copy_(row[: t.numel()].view(t.shape))

    return rows, copy


def _joined(tensors: Sequence[Tensor], width: int) -> Tensor | None:
    """One tensor over all if they lie one after the other in memory and each has ``width`` elements."""
    first = tensors[0]
    size = first.element_size()
    for number, t in enumerate(tensors):
        apart = t.data_ptr() != first.data_ptr() + number * width * size
        if apart or t.numel() != width or not t.is_contiguous() or place_of(t) is None:
            return None
    count = len(tensors) * width
    if (first.storage_offset() + count) * size > first.untyped_storage().nbytes():
        return None  # neighbours by chance
    return first.detach().as_strided((count,), (1,))
