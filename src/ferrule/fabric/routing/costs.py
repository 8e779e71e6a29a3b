"""Cost matrices of messages between ranks: the numbers by which algorithms are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Matrix = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class PairCosts:
    """For every pair of ranks that share a link; None where there is none, and for a rank with itself.

    A message of n bytes from rank i to rank j takes about ``alpha[i][j] + n * beta[i][j]`` seconds one way, over all
    rails of the pair together. ``crowding``: how many ranks share a core on the fullest host, at least 1. The same on
    every rank of a group.
    """

    alpha: Matrix
    beta: Matrix
    crowding: float = 1.0

    def among(self, ranks: Sequence[int]) -> PairCosts:
        """The costs of a group of some of the ranks, in its order."""
        return PairCosts(
            tuple(tuple(self.alpha[a][b] for b in ranks) for a in ranks),
            tuple(tuple(self.beta[a][b] for b in ranks) for a in ranks),
            self.crowding,
        )

    @property
    def size(self) -> int:
        return len(self.alpha)

    def linked(self, a: int, b: int) -> bool:
        return self.alpha[a][b] is not None and self.alpha[b][a] is not None

    def neighbours(self, rank: int) -> tuple[int, ...]:
        return self._neighbours[rank]

    @cached_property
    def _neighbours(self) -> tuple[tuple[int, ...], ...]:
        everyone = range(self.size)
        return tuple(
            tuple(other for other in everyone if other != rank and self.linked(rank, other)) for rank in everyone
        )
