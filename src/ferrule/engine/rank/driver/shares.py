"""Fair shares of queues, by the tokens that were computed for each. Pure.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): the queue for which least
was computed comes first. So of two that always have something waiting none gets more than a step ahead, and one that
comes after a pause begins beside the others: it has neither a claim to what it left unused, nor a debt.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_IDLE = 1000
"""Queues without a sequence whose counters are kept."""


class Shares:
    """Counters of queues, by their names."""

    def __init__(self) -> None:
        self._computed: dict[str, int] = {}
        self._least = 0

    def joins(self, queue: str, busy: Iterable[str]) -> None:
        """A sequence of ``queue`` comes; ``busy``: those of the others that there are."""
        others = set(busy)
        if queue in others:
            return
        self._least = max(self._least, min((self._computed[each] for each in others), default=0))
        self._computed[queue] = max(self._computed.get(queue, 0), self._least)
        if len(self._computed) > MOST_IDLE + len(others):
            self._computed = {
                each: count for each, count in self._computed.items() if each in others or count >= self._least
            }

    def took(self, queue: str, tokens: int) -> None:
        self._computed[queue] += tokens

    def of(self, queue: str) -> int:
        """Tokens that were computed for it."""
        return self._computed[queue]
