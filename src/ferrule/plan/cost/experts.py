"""Number of experts that one device of several needs, when whole experts are given out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def busiest_share(counts: Sequence[int], per_token: int, tokens: float) -> float:
    """The expected number of different experts that the busiest device needs, when device i has ``counts[i]`` of them
    and each of ``tokens`` tokens is sent to ``per_token`` of all at random.

    One token: the expected largest of a multivariate hypergeometric draw, exactly. More: each device's expected
    number, ``c * (1 - (1 - k/E)^B)``, and for the largest of n such the rise that n normal variables would have,
    ``sigma * sqrt(2 ln n)``, never more than the device has.
    """
    total = sum(counts)
    if len(counts) == 1 or per_token >= total:
        return min(float(max(counts)), _touched(max(counts), total, per_token, tokens))
    if tokens <= 1:
        return _largest_draw(tuple(sorted(counts)), per_token)
    rise = math.sqrt(2 * math.log(len(counts)))
    largest = 0.0
    for count in counts:
        mean = _touched(count, total, per_token, tokens)
        sigma = math.sqrt(max(0.0, mean * (1 - mean / count))) if count else 0.0
        largest = max(largest, min(float(count), mean + rise * sigma * math.sqrt(1 - count / total)))
    return largest


def _touched(count: int, total: int, per_token: int, tokens: float) -> float:
    return count * (1.0 - math.pow(max(0.0, 1.0 - per_token / total), max(0.0, tokens)))


@lru_cache(maxsize=4096)
def _largest_draw(counts: tuple[int, ...], draws: int) -> float:
    """E[max] of a multivariate hypergeometric: the sum over m of P(max > m), each by counting draws of at most m."""
    ways: NDArray[np.float64] = np.zeros((draws, 1, draws + 1))  # by m: with at most m from each device so far
    ways[:, :, 0] = 1.0
    for count in counts:
        ways = ways @ _draws_from(count, draws)
    return float((1 - ways[:, 0, draws] / math.comb(sum(counts), draws)).sum())


@lru_cache(maxsize=1024)
def _draws_from(count: int, draws: int) -> NDArray[np.float64]:
    """By m, i and j: how many ways there are to draw j - i of ``count``, if that is at most m. Draws from several
    devices are products of these: of polynomials, written as matrices."""
    m, i, j = np.ogrid[:draws, : draws + 1, : draws + 1]
    choices = np.array([float(math.comb(count, mine)) for mine in range(draws + 1)])
    found: NDArray[np.float64] = np.where((j >= i) & (j - i <= m), choices[np.maximum(j - i, 0)], 0.0)
    return found
