"""Prompts of the self-test: token ids, and the positions at which results are compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PREFIXES = (5, 11, 17, 23, 29, 35, 41, 47)
"""Lengths of the short prompts, all beginnings of one. Each is run, and then one more token."""
LONG = 4096 + 128
"""Tokens of the long prompt: beyond 4096, where other engines have been seen to go wrong without a word."""
LEAST_LONG = 256
LONG_ROWS = 32
EDGE = 4096
COLUMNS = 1024
"""Number of values of each row that are compared."""


def token_ids(count: int, vocabulary: int) -> list[int]:
    """The same pseudo-random ids each time (a linear congruential generator with Knuth's MMIX constants)."""
    state, found = 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found.append((state >> 33) % vocabulary)
    return found


def prefixes(context: int) -> list[int]:
    """The short prompts' lengths that a context holds, with one more token each."""
    return [length for length in PREFIXES if length < context]


def short_rows(lengths: list[int]) -> list[int]:
    """Places whose logits are compared: the ends of the prompts, then the tokens after them."""
    return [length - 1 for length in lengths] + lengths


def long_tokens(context: int) -> int:
    """Tokens of the long prompt, 0 where the context holds nothing longer than the short ones."""
    tokens = min(LONG, context - 1)
    return tokens if tokens >= LEAST_LONG else 0


def long_rows(tokens: int) -> list[int]:
    """Places of the long prompt that are compared: all along it, and around 4096."""
    spread = [int(place) for place in np.linspace(tokens // LONG_ROWS, tokens - 1, LONG_ROWS)]
    return sorted({*spread, *(place for place in range(EDGE - 2, EDGE + 3) if place < tokens)})


def columns(width: int) -> list[int]:
    """Columns of a row that are kept, spread over all."""
    return [int(place) for place in np.linspace(0, width - 1, min(width, COLUMNS))]


@dataclass(frozen=True)
class Part:
    """Some of the compared rows: ``name`` for the error message."""

    name: str
    rows: tuple[int, ...]


def short_parts(lengths: list[int]) -> list[Part]:
    count = len(lengths)
    return [
        Part("of short prompts", tuple(range(count))),
        Part("of single tokens after them", tuple(range(count, 2 * count))),
    ]


def long_parts(places: list[int]) -> list[Part]:
    """Quarters of the long prompt, and what is beyond 4096."""
    found = []
    quarter = -(-len(places) // 4)
    for first in range(0, len(places), quarter):
        rows = tuple(range(first, min(first + quarter, len(places))))
        found.append(Part(f"of tokens {places[rows[0]]} to {places[rows[-1]]} of a long prompt", rows))
    beyond = tuple(row for row, place in enumerate(places) if place >= EDGE)
    return [*found, Part(f"of a long prompt beyond {EDGE} tokens", beyond)] if beyond else found
