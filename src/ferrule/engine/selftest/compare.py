"""Comparison of a split model's results with its reference: the error, and its tolerance. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.selftest.prompts import Part

Rows = NDArray[np.float32]

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The distance of 1 from the next larger number."""
NOISE = 10.0
"""Number of roundings that a layer may add, where the layers' errors add up as a random walk. About 2 were measured
with most architectures of the tests, 5 with Gemma 3, and up to 7 where rounding sends tokens to other experts."""
MOST = 0.3
"""Beyond this it is no rounding, however deep the model is; a part in a wrong place gives about 1."""
LEAST = 2e-4
"""Also float32 differs by this much: its sums run in other orders."""


def tolerance(dtype: str, layers: int, cache_bits: int = 0) -> float:
    """The error that rounding explains: every layer rounds its output, and the errors add up like a random walk.
    ``cache_bits``: of codes for keys and values, which round, too; 0: there are none."""
    rounding = max(EPSILON[dtype], 2.0**-cache_bits if cache_bits else 0.0)
    return min(MOST, max(LEAST, NOISE * rounding * math.sqrt(layers)))


def error(found: Rows, expected: Rows) -> float:
    """The mean absolute difference of a row, relative to the spread of its numbers; the median over the rows.

    The median, because routing to experts is not continuous: rounding sends a few tokens elsewhere.
    """
    if not np.isfinite(found).all():
        return math.inf
    spread = np.abs(expected - expected.mean(axis=1, keepdims=True)).mean(axis=1)
    return float(np.median(np.abs(found - expected).mean(axis=1) / np.maximum(spread, 1e-30)))


def worst(found: Rows, expected: Rows, parts: Sequence[Part]) -> tuple[float, str]:
    """The part that is farthest off, and how far."""
    return max((error(found[list(part.rows)], expected[list(part.rows)]), part.name) for part in parts)
