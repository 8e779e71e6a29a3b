"""Speculation as users ask for it: how many tokens of an answer are guessed and computed together."""

from __future__ import annotations

from ferrule.errors import ConfigError

GUESSED, MOST_GUESSED = 8, 32
"""Tokens that ``--speculate ngram`` guesses at once at most, and those that may be asked for."""


def parse_speculation(text: str) -> int:
    """How many tokens are guessed at once at most: of ``ngram:K``, ``ngram``, or ``off`` (0). Raises `ConfigError`."""
    method, _, count = text.partition(":")
    if text == "off":
        return 0
    if text == "ngram":
        return GUESSED
    if method == "ngram" and count.isdecimal() and 1 <= int(count) <= MOST_GUESSED:
        return int(count)
    raise ConfigError(
        f"--speculate {text!r} is none of off, ngram and ngram:K, where K is how many tokens are guessed at once at "
        f"most, from 1 to {MOST_GUESSED}"
    )
