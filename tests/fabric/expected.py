"""Expected results of reductions, bit for bit, worked out with numpy in the order of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Op = Literal["sum", "prod", "min", "max", "avg"]

OPS: tuple[Op, ...] = ("sum", "prod", "min", "max", "avg")
DTYPES = (
    "float64", "float32", "float16", "int8", "uint8", "int32", "int64", "bool", "int16", "uint16", "uint32", "uint64",
)  # fmt: skip
# Around every limit of the code: cache lines, slots, chunks, windows, pieces and rings, and one beyond.
SIZES = (0, 1, 2, 3, 5, 15, 16, 17, 63, 64, 1000, 4096, 8191, 16_384, 16_385, 32_769, 65_537, 262_145, 300_007, 700_001)


@dataclass(frozen=True)
class Case:
    op: Op
    dtype: str
    size: int


def cases_of(seed: int, count: int) -> Iterator[Case]:
    chooser = random.Random(seed)
    for number in range(count):
        dtype = DTYPES[number % len(DTYPES)]
        size = SIZES[number % len(SIZES)] if number < len(SIZES) else chooser.choice(SIZES[:14])
        op = chooser.choice(OPS)
        yield Case("sum" if dtype == "bool" and op == "avg" else op, dtype, size)


def make_input(case: Case, number: int, rank: int) -> Array:
    generator = np.random.default_rng((number, rank))
    if case.dtype == "bool":
        return generator.integers(0, 2, case.size).astype(bool)
    if case.dtype.startswith("float"):
        return (generator.standard_normal(case.size) * 10).astype(case.dtype)
    limits = np.iinfo(case.dtype)
    return generator.integers(limits.min, limits.max, case.size, dtype=case.dtype, endpoint=True)


def reduced(inputs: Sequence[Array], op: Op) -> Array:
    dtype = inputs[0].dtype
    if dtype.kind == "b":
        combine: Any = np.logical_or if op in ("sum", "max") else np.logical_and
        wide = dtype
    else:
        combine = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
        wide = dtype
        if dtype == np.float16:
            wide = np.dtype(np.float32)
        elif op == "avg" and dtype.kind in "iu":
            wide = np.dtype(np.uint64 if dtype == np.uint64 else np.int64)
    total = inputs[0].astype(wide)
    with np.errstate(over="ignore"):
        for part in inputs[1:]:
            total = combine(total, part.astype(wide))
        if op == "avg":
            count = len(inputs)
            total = total / wide.type(count) if wide.kind == "f" else np.sign(total) * (np.abs(total) // count)
        return total.astype(dtype)
