"""Groups of texts that an encoder computes together, filled up to the longest one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MOST_PADDING = 64
"""Tokens of padding that cost no more than another call."""


def grouped(lengths: Sequence[int]) -> list[list[int]]:
    """Numbers of the texts of these ``lengths`` in groups, the longest first: each is filled up with `MOST_PADDING`
    tokens, or a quarter of what it has, at most."""
    groups: list[list[int]] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        if groups:
            longest = lengths[groups[-1][0]]
            padding = longest * (len(groups[-1]) + 1) - tokens - lengths[number]
            if padding <= max(MOST_PADDING, (tokens + lengths[number]) // 4):
                groups[-1].append(number)
                tokens += lengths[number]
                continue
        groups.append([number])
        tokens = lengths[number]
    return groups
