"""Speculation as users ask for it: who guesses tokens of an answer, and how many that are computed together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ferrule.errors import ConfigError

GUESSED, MOST_GUESSED = 8, 32
"""Tokens that are guessed at once at most, and those that may be asked for."""


@dataclass(frozen=True)
class Speculate:
    """``method``: what guesses; ``mtp``: the model's own layer for multi-token prediction. ``most``: how many tokens of
    a sequence at once, at most. ``draft``: of the method of this name, the model: a directory, a GGUF file or a hub
    id."""

    method: Literal["off", "ngram", "draft", "mtp"] = "off"
    most: int = 0
    draft: str = ""

    @property
    def text(self) -> str:
        """As `parse_speculation` takes it, from any working directory."""
        if self.method == "off":
            return "off"
        return f"{self.method}{f'={self.draft}' if self.draft else ''}:{self.most}"


def parse_speculation(text: str) -> Speculate:
    """Of ``ngram``, ``ngram:K``, ``mtp``, ``mtp:K``, ``draft=MODEL``, ``draft=MODEL:K`` or ``off``. Raises
    `ConfigError`."""
    if text == "off":
        return Speculate()
    given, colon, count = text.rpartition(":")
    if not colon or not count.isdecimal():
        given, count = text, str(GUESSED)
    method, _, model = given.partition("=")
    if 1 <= int(count) <= MOST_GUESSED:
        if given == "ngram":
            return Speculate("ngram", int(count))
        if given == "mtp":
            return Speculate("mtp", int(count))
        if method == "draft" and model:
            here = Path(model).expanduser()
            return Speculate("draft", int(count), str(here.absolute()) if here.exists() else model)
    raise ConfigError(
        f"--speculate {text!r} is none of off, ngram[:K], mtp[:K] and draft=MODEL[:K], where K is how many tokens are "
        f"guessed at once at most, from 1 to {MOST_GUESSED}"
    )
