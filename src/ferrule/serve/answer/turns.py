"""Turns of requests: what they ask for, and what the key that they come with may have. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.engine import Turn
from ferrule.serve.http.errors import ApiError
from ferrule.serve.keys.keyring import Caller

TIERS = {"priority": -1, "flex": 1}
"""Steps of priority by OpenAI's ``service_tier``; others are as good as none."""
QUEUE_CHARACTERS = 16
"""Of a key's hash, by which its queue is called."""


@dataclass(frozen=True)
class TurnAsked:
    """``priority``: as vLLM has it, lower ones first. ``tier``: as OpenAI has it. ``timeout``: seconds from the
    request's header in which the first token must come."""

    priority: int | None = None
    tier: str | None = None
    timeout: float | None = None


NOTHING_ASKED = TurnAsked()


def granted(asked: TurnAsked, caller: Caller) -> Turn:
    """The turn of a request: what is left out is as its key has it. A tier is relative to that, and only a wish. Raises
    `ApiError` 403 for a priority before that of the key."""
    best, queue = caller.priority, caller.identity[:QUEUE_CHARACTERS]
    if asked.priority is None:
        step = TIERS.get(asked.tier or "", 0)
        return Turn(queue, step if best is None else best + max(0, step))
    if best is not None and asked.priority < best:
        raise ApiError(
            403,
            f"priority: {asked.priority} is before {best}, the priority of the key {caller.name!r}; leave it out, or "
            "give a higher number, which comes later",
            code="priority_not_allowed",
            param="priority",
        )
    return Turn(queue, asked.priority)
