"""torch's reductions in terms of the fabric's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp

from ferrule._native import REDUCTIONS
from ferrule.fabric import Reduction
from ferrule.torch_backend.tensors import MOVED, check, place_of, source

# torch's ReduceOp compares slowly; its hash, the number of the operation, is the quickest thing to ask of it.
_NAMES: dict[int, Reduction] = {
    hash(ReduceOp(ReduceOp.SUM)): "sum",
    hash(ReduceOp(ReduceOp.AVG)): "avg",
    hash(ReduceOp(ReduceOp.PRODUCT)): "prod",
    hash(ReduceOp(ReduceOp.MIN)): "min",
    hash(ReduceOp(ReduceOp.MAX)): "max",
}
_PREMUL_SUM = hash(ReduceOp.PREMUL_SUM)
_BITWISE = {
    hash(ReduceOp(ReduceOp.BAND)): torch.bitwise_and,
    hash(ReduceOp(ReduceOp.BOR)): torch.bitwise_or,
    hash(ReduceOp(ReduceOp.BXOR)): torch.bitwise_xor,
}

FABRIC_REDUCTIONS: dict[int, int] = {number: REDUCTIONS[name] for number, name in _NAMES.items()}
"""By the hash of a ReduceOp: the fabric's code for what it does itself."""

_WIDER: dict[torch.dtype, torch.dtype] = {
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}
"""Wider type for one that the fabric does not reduce: one that holds all its values."""


class Operand(NamedTuple):
    """``values`` are to be reduced with ``name``. ``shared``: they are the tensor's own memory, not a copy."""

    values: Tensor
    name: Reduction
    shared: bool


def operand(t: Tensor, op: Any) -> Operand:
    """The tensor as the fabric can reduce it. Raises `TypeError` where a type and an operation do not go together."""
    simple = _NAMES.get(hash(op))
    if simple is not None and place_of(t) is not None:
        return Operand(t, simple, True)
    check(t)
    name, factor = _decode(op)
    values = numbers(t)
    if t.is_complex() and name not in ("sum", "avg"):
        raise TypeError(f"complex numbers have no {name}; reduce torch.view_as_real(x) if its parts are meant")
    wide = _WIDER.get(values.dtype, values.dtype)
    if wide not in MOVED:
        raise TypeError(f"tensors of type {t.dtype} cannot be reduced; convert to float32 first")
    wider = values.to(wide)
    copy = (wider if factor is None else wider * factor).contiguous()
    return Operand(copy, name, copy.data_ptr() == values.data_ptr())


def numbers(t: Tensor) -> Tensor:
    """A view without gradient whose elements reduce one by one: parts of complex numbers."""
    t = t.detach()
    return torch.view_as_real(t) if t.is_complex() else t


def is_bitwise(op: Any) -> bool:
    return hash(op) in _BITWISE


def fold_bits(op: Any, parts: Tensor) -> Tensor:
    """Combine ``parts`` along the first axis."""
    combine = _BITWISE[hash(op)]
    result = parts[0].clone()
    for part in parts[1:]:
        combine(result, part, out=result)
    return result


def bits(t: Tensor) -> Tensor:
    """The tensor's elements in one line, for `fold_bits`. Raises `TypeError` for what has no bits to combine."""
    if t.is_floating_point() or t.is_complex():
        raise TypeError(f"bitwise reductions need integers or bool, not {t.dtype}")
    return source(t)


def _decode(op: Any) -> tuple[Reduction, Any]:
    name = _NAMES.get(hash(op))
    if name is not None:
        return name, None
    if hash(op) == _PREMUL_SUM:
        return "sum", op.__getstate__()[1]
    if is_bitwise(op):
        raise TypeError("bitwise reductions are offered by all_reduce and reduce only; use all_reduce")
    raise TypeError(f"the backend ferrule has no reduction {op}")
