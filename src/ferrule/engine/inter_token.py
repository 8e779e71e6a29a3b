"""Limit of inter-token latency: how long a step of answers may take by pieces of prompts that are computed in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ferrule.errors import ConfigError
from ferrule.units import parse_seconds

RATIO = 2.0
CROWDED = 4.0
"""Of `AUTO`: prompts that are more than the answers beside them may make steps so many times as long. At twice, 16
streams that begin at once had to wait long for each other, while the first of them answered."""
AUTO, OFF = "auto", "off"
_RATIO = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*x")


@dataclass(frozen=True)
class InterTokenLimit:
    """``ratio``: of a step's time to that of its answers alone; ``crowded``: up to which that rises, to 1 and the
    prompts for each answer. ``seconds``: of a step. Where all are None there is no limit."""

    ratio: float | None = None
    crowded: float | None = None
    seconds: float | None = None

    def step_seconds(self, alone: float, answers: int, prompts: int) -> float | None:
        """That a step of ``answers``, which take ``alone`` seconds without them, may take with pieces of ``prompts``;
        None: any."""
        if self.seconds is not None:
            return self.seconds
        if self.ratio is None:
            return None
        return alone * max(self.ratio, min(self.crowded or 0.0, 1 + prompts / answers))


def parse_inter_token_limit(text: str) -> InterTokenLimit:
    """``auto``, ``off``, a multiple of the time without prompts, as ``2x``, or a time, as ``80ms``. Raises
    `ConfigError`."""
    if text == AUTO:
        return InterTokenLimit(RATIO, CROWDED)
    if text == OFF:
        return InterTokenLimit()
    if match := _RATIO.fullmatch(text):
        ratio = float(match[1])
        if ratio > 1:
            return InterTokenLimit(ratio)
        raise ConfigError(f"--inter-token-limit {text}: prompts need some time beside answers; give more than 1x")
    try:
        seconds = parse_seconds(text)
    except ConfigError:
        raise ConfigError(f"--inter-token-limit {text!r} is none of auto, off, 2x or 80ms") from None
    if not seconds:
        raise ConfigError(f"--inter-token-limit {text}: no step takes no time; give off for no limit")
    return InterTokenLimit(seconds=seconds)
