"""Checks of what operations of a group are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ferrule._native import REDUCTIONS
from ferrule.fabric.arrays import locate, new_like


def reduction_number(op: str) -> int:
    if op not in REDUCTIONS:
        raise ValueError(f"there is no reduction {op!r}; use one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS[op]


def make_out(x: Any, out: Any, shape: Sequence[int], wanted: int, wanted_dtype: int) -> tuple[Any, int]:
    """``out``, or where it is None a new array of this shape like ``x``; and its address.

    Raises `ValueError` and `TypeError` unless it has ``wanted`` elements of that type.
    """
    if out is None:
        out = new_like(x, shape)
    address, count, dtype = locate(out, writable=True)
    if count != wanted:
        raise ValueError(f"out has {count} elements, but the result has {wanted}")
    if dtype != wanted_dtype:
        raise TypeError("out has another element type than the input")
    return out, address


def joined_shape(x: Any, size: int) -> tuple[int, ...]:
    """The shape of ``size`` arrays like ``x`` joined along their first axis."""
    return (size * x.shape[0], *x.shape[1:]) if x.ndim else (size,)


def divided_shape(x: Any, size: int) -> tuple[int, ...]:
    """The shape of one of ``size`` equal parts of ``x`` along its first axis."""
    shape = tuple(x.shape)
    if not shape or shape[0] % size:
        raise ValueError(f"the first axis of shape {shape} does not divide into {size} equal parts")
    return (shape[0] // size, *shape[1:])


def elements_of_rows(x: Any, send_counts: Sequence[int], recv_counts: Sequence[int], size: int) -> list[list[int]]:
    """Number of elements of ``x`` that go to each of ``size`` ranks and come from each, by numbers of rows."""
    row = math.prod(x.shape[1:])
    for name, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
        if len(counts) != size or min(counts) < 0:
            raise ValueError(f"{name} needs a number of rows, 0 or more, for each of {size} ranks: {counts}")
    if sum(send_counts) * row != math.prod(x.shape):
        raise ValueError(f"send_counts add up to {sum(send_counts)} rows, but x has shape {tuple(x.shape)}")
    return [[count * row for count in counts] for counts in (send_counts, recv_counts)]
