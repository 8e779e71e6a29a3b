"""Whole experts on several devices: how many of them the busiest one needs, and the bytes that their tokens take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ferrule.model.layer import ExpertsSpec

CHOICE_BYTES = 8
"""Of one choice of a token, as it is told to other devices: the expert's number and its weight."""


@dataclass(frozen=True)
class Sent:
    """Bytes that ``ranks`` devices together send to others, in messages of a layer, for a pass over ``rows`` tokens of
    ``width`` numbers, each of ``number`` bytes.

    Each device goes on with an equal part of the tokens. Attention that is cut needs all of them: they are gathered
    before it, and reduced and scattered behind it, ``(ranks - 1) * rows`` rows either time, together what an all-reduce
    by pieces sends. In place of the second all-reduce of a layer devices tell each other the choices of their tokens,
    send each to every other device that has one of its experts, and as many results come back: ``remote`` rows either
    time, `remote_rows` of them if experts are chosen at random. Attention that is whole gives every device all tokens:
    then only results are sent, and gathered for the next layer.
    """

    ranks: int
    width: int
    number: float
    rows: int

    @property
    def whole(self) -> float:
        """All tokens gathered, or reduced and scattered."""
        return (self.ranks - 1) * self.rows * self.width * self.number

    @property
    def all_reduce(self) -> float:
        """One by pieces, which the forms without sending need twice a layer, with whole attention once."""
        return 2 * self.whole

    def layer(self, experts: ExpertsSpec | None, remote: float, *, alone: bool) -> tuple[float, ...]:
        """``alone``: attention is whole on every device. ``remote``: rows that go to other devices' experts."""
        there = remote * self.width * self.number
        if alone:
            return () if experts is None else (there, self.whole)
        if experts is None:
            return (self.whole,) * 4
        choices = (self.ranks - 1) * self.rows * experts.per_token * CHOICE_BYTES
        return (self.whole, self.whole, float(choices), there, there)


def remote_rows(counts: Sequence[int], per_token: int, rows: float) -> float:
    """Expected number of rows that are sent to experts of other devices, device i having ``counts[i]`` of them and an
    equal part of ``rows`` tokens, each of which chooses ``per_token`` of all at random: a row goes once to a device,
    however many of its experts are there."""
    total, ranks = sum(counts), len(counts)
    reached = sum(1 - math.comb(total - count, per_token) / math.comb(total, per_token) for count in counts)
    return rows * reached * (ranks - 1) / ranks


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
