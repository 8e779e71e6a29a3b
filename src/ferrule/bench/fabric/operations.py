"""Measured operations: how a sample of each is taken, and the meaning of its bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ferrule.fabric import DTYPE_BYTES


@dataclass(frozen=True)
class Operation:
    """``gives`` and ``gets``: whether a rank gives and gets a part (one ``ranks``-th of the array) or the whole;
    where the array is not divided, the part is all of it, and ``gets=None`` means in place.

    ``sample``: what one sample takes the time of. "call": one call, which ends on no rank before all have begun it.
    "roots": a root may run ahead of the others, so one call with every rank as root, divided by their number.
    "pair": a message from rank 0 to rank 1 and back, divided by two.

    ``bus_factor``: bytes that must cross the busiest rank's link for every byte of the array, by the number of ranks.
    """

    name: str
    gives: Literal["part", "whole"]
    gets: Literal["part", "whole"] | None
    reduces: bool
    sample: Literal["call", "roots", "pair"]
    bus_factor: Callable[[int], float]

    @property
    def divides(self) -> bool:
        return "whole" in (self.gives, self.gets)

    def count(self, size: int, dtype: str, ranks: int) -> int | None:
        """Elements of a part when the whole array has ``size`` bytes; None if that is no whole number."""
        unit = DTYPE_BYTES[dtype] * (ranks if self.divides else 1)
        return None if size % unit else size // unit


def _once(ranks: int) -> float:
    return 1.0


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _there_and_back(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", "part", None, True, "call", _there_and_back),
        Operation("all_gather", "part", "whole", False, "call", _all_but_own),
        Operation("reduce_scatter", "whole", "part", True, "call", _all_but_own),
        Operation("all_to_all", "whole", "whole", False, "call", _all_but_own),
        Operation("broadcast", "part", None, False, "roots", _once),
        Operation("reduce", "part", None, True, "roots", _once),
        Operation("gather", "part", "whole", False, "roots", _all_but_own),
        Operation("scatter", "whole", "part", False, "roots", _all_but_own),
        Operation("send_recv", "part", None, False, "pair", _once),
        Operation("barrier", "part", None, False, "call", _once),
    )
}


_LIMIT_FACTORS = {"memcpy": 1.0, "exchange": 1.0, "nothing": 0.0}


def bus_gb_s(op: str, size: int, ranks: int, microseconds: float) -> float:
    """Bus bandwidth in GB/s (10**9 bytes): comparable with the wire's speed, whatever the number of ranks.

    ``op`` may also be a limit beside them: "memcpy", where it is what is copied; "exchange", where it is what each end
    sends; or "nothing".
    """
    factor = _LIMIT_FACTORS[op] if op in _LIMIT_FACTORS else OPERATIONS[op].bus_factor(ranks)
    return factor * size / microseconds / 1e3
