"""Turn of a request: where it stands among those that wait."""

from __future__ import annotations

from dataclasses import dataclass

MOST_PRIORITY = 100
"""Furthest from 0 that a priority may be."""


@dataclass(frozen=True)
class Turn:
    """``queue``: its fair queue, which requests of one API key share. ``priority``: lower numbers come first."""

    queue: str = ""
    priority: int = 0


FIRST_COME = Turn()
"""That of all who ask for none."""
