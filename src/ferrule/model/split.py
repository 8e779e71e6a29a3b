"""Pure arithmetic of cutting a model: heads over ranks, ranges into parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ferrule.errors import PlanError

Range = tuple[int, int]
_ROUNDING = 1e-6


def no_plan(kind: str, architecture: str) -> str:
    """Reason why ``architecture`` is not split the ``kind`` way (tensor parallel, pipeline, expert parallel)."""
    return f"transformers has no {kind} plan for {architecture}"


def divide(total: int, shares: Sequence[float], what: str = "size", unit: int = 1) -> tuple[Range, ...]:
    """Half-open ranges of ``range(total)``, one for each rank, in proportion to ``shares`` and cut at multiples of
    ``unit``: by largest remainders (Hamilton), ties to the first, and no range is empty.

    Raises `PlanError` (naming ``what``) where there are fewer units than ranks.
    """
    units, ranks = -(-total // unit), len(shares)
    if units < ranks:
        grouped = f" in groups of {unit}" if unit > 1 else ""
        raise PlanError(f"{what} {total}{grouped} cannot be shared by {ranks} ranks; use --tp {max(1, units)} or less")
    if min(shares) <= 0:
        raise PlanError(f"{what} {total} cannot be cut into shares of {', '.join(f'{share:g}' for share in shares)}")
    exact = [units * share / sum(shares) for share in shares]
    counts = [max(1, math.floor(each + _ROUNDING)) for each in exact]

    def missing(place: int) -> float:
        return round(exact[place] - counts[place], 6)

    while sum(counts) < units:
        counts[max(range(ranks), key=lambda place: (missing(place), -place))] += 1
    while sum(counts) > units:
        counts[min((place for place in range(ranks) if counts[place] > 1), key=missing)] -= 1
    ends = [min(total, end * unit) for end in accumulate(counts)]
    return tuple(pairwise((0, *ends)))


@dataclass(frozen=True)
class HeadSplit:
    """Query and key/value heads that one rank holds.

    With fewer key/value heads than ranks several ranks hold the same one, so that every query head finds its key/value
    head on its own rank.
    """

    query: Range
    key_value: Range

    @property
    def query_heads(self) -> int:
        return self.query[1] - self.query[0]

    @property
    def key_value_heads(self) -> int:
        return self.key_value[1] - self.key_value[0]


def split_heads(query_heads: int, key_value_heads: int, shares: Sequence[float]) -> tuple[HeadSplit, ...]:
    """Heads of each rank, in proportion to ``shares``, with each query head beside its key/value head.

    Query head ``q`` reads key/value head ``q // (query_heads // key_value_heads)`` (grouped-query attention, Ainslie
    et al. 2023), so ranks get whole key/value heads with all that read them. With fewer of these than ranks, ranks in a
    row hold the same one and share what reads it, as many of them as makes the most loaded rank's part the smallest.
    Raises `PlanError` where there are fewer query heads than ranks.
    """
    if query_heads % key_value_heads:
        raise PlanError(f"{query_heads} attention heads do not divide by {key_value_heads} key/value heads")
    ranks, readers = len(shares), query_heads // key_value_heads
    if key_value_heads >= ranks:
        held = divide(key_value_heads, shares, "the number of key/value heads")
        return tuple(HeadSplit((first * readers, last * readers), (first, last)) for first, last in held)
    divide(query_heads, shares, "the number of attention heads")
    found, start = [], 0
    for head, count in enumerate(_holders(key_value_heads, readers, shares)):
        for first, last in divide(readers, shares[start : start + count]):
            found.append(HeadSplit((head * readers + first, head * readers + last), (head, head + 1)))
        start += count
    return tuple(found)


def _holders(heads: int, readers: int, shares: Sequence[float]) -> list[int]:
    """Ranks that hold each of ``heads``, fewer than there are ranks: the best by dynamic programming."""
    ranks = len(shares)
    best: list[tuple[float, list[int]] | None] = [(0.0, []), *[None] * ranks]
    for _ in range(heads):
        after: list[tuple[float, list[int]] | None] = [None] * (ranks + 1)
        for start, before in enumerate(best):
            if before is None:
                continue
            for stop in range(start + 1, min(start + readers, ranks) + 1):
                own = shares[start:stop]
                load = max((b - a) / share for (a, b), share in zip(divide(readers, own), own, strict=True))
                so_far, least = max(before[0], load), after[stop]
                if least is None or so_far < least[0] - _ROUNDING:
                    after[stop] = so_far, [*before[1], stop - start]
        best = after
    found = best[ranks]
    assert found is not None  # there are no more ranks than query heads
    return found[1]
