"""Collective algorithms by message size: a decision table from the costs of links, printable, pure.

The model is that of LogGP (Alexandrov and others, 1995) reduced to what decides here: a message takes alpha + bytes *
beta on each link of its path, links work at the same time, and every message costs its ends some work of their own,
which ranks that share a core do one after the other.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from ferrule._native import ALGORITHMS, OPS
from ferrule.fabric.routing.costs import PairCosts
from ferrule.fabric.routing.topology import Route, best_ring, best_tree, cheapest_routes, pair_cost
from ferrule.units import format_bytes

_UNLIMITED = (1 << 64) - 1
_SIZES = tuple(1 << power for power in range(3, 33))
WORK_SECONDS = 3e-6
"""Seconds per message of the rank that sends or receives it: about a system call and its share of the loop."""
_FORWARD_SECONDS = 10e-6
"""Seconds per forwarded message of the rank between: it forwards all that pass through it one after the other, each
with a few system calls."""
_LARGEST_COPIED = 64 << 10
"""Above, "once" and "doubling" would copy and reduce much more than others; they are for small messages."""
_CHUNK_BYTES = 256 << 10

CANDIDATES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("once", "pieces", "doubling", "tree", "ring"),
    "all_gather": ("pieces", "doubling", "tree", "ring"),
    "reduce_scatter": ("pieces", "tree", "ring"),
    "broadcast": ("pieces", "tree"),
    "reduce": ("pieces", "tree"),
    "barrier": ("once", "doubling", "tree"),
}
"""Candidate algorithms in the native core for each collective; "pieces" stands for the direct path where nothing is
cut. The others (gather, scatter, all_to_all) always go directly, through other ranks where there is no link."""


@dataclass(frozen=True)
class Decision:
    """``op`` on up to ``up_to`` bytes (as its caller counts them: one rank's part for all_gather, the whole array
    otherwise) uses ``algorithm``, which should take ``seconds`` for that many."""

    op: str
    up_to: int
    algorithm: str
    seconds: float


@dataclass(frozen=True)
class Strategy:
    """The same on every rank. Empty: every rank talks to every other directly."""

    decisions: tuple[Decision, ...] = ()
    tree: tuple[int, ...] = ()
    ring: tuple[int, ...] = ()

    def native_decisions(self) -> list[tuple[int, int, int]]:
        return [(OPS[row.op], row.up_to, ALGORITHMS[row.algorithm]) for row in self.decisions]

    def __str__(self) -> str:
        if not self.decisions:
            return "every rank talks to every other directly"
        lines = []
        if self.tree:
            lines.append(
                "tree: " + ", ".join(f"{rank}->{parent}" for rank, parent in enumerate(self.tree) if parent >= 0)
            )
        if self.ring:
            lines.append("ring: " + "-".join(map(str, self.ring)))
        for row in self.decisions:
            size = "larger" if row.up_to == _UNLIMITED else f"to {format_bytes(row.up_to)}"
            lines.append(f"{row.op:<14} {size:<12} {row.algorithm}")
        return "\n".join(lines)


def choose_algorithms(costs: PairCosts | None, size: int, *, force: str | None = None) -> Strategy:
    """The strategy for a group of ``size`` ranks whose links cost that; ``force`` names one algorithm for all.

    Two ranks have their own path, and ranks on one host that share memory have theirs: the strategy is for all others.
    Without ``costs`` and ``force`` it is empty.
    """
    if size <= 2 or (costs is None and force is None):
        return Strategy()
    if costs is None:
        costs = PairCosts(_uniform(size, 30e-6), _uniform(size, 1e-9))
    model = Model(costs)
    tree, ring = model.tree or (), model.ring or ()
    decisions: list[Decision] = []
    for op, candidates in CANDIDATES.items():
        possible = [name for name in candidates if (name != "tree" or tree) and (name != "ring" or ring)]
        if force in possible:
            possible = [force]
        decisions += _merge(_best_by_size(model, op, possible))
    return Strategy(tuple(decisions), tuple(tree), tuple(ring))


def _uniform(size: int, value: float) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if a == b else value for b in range(size)) for a in range(size))


def _best_by_size(model: Model, op: str, candidates: Iterable[str]) -> list[Decision]:
    rows = []
    for size in _SIZES if op != "barrier" else (0,):
        seconds, algorithm = min((model.seconds(op, name, size), name) for name in candidates)
        rows.append(Decision(op, size, algorithm, seconds))
    return rows


def _merge(rows: list[Decision]) -> list[Decision]:
    """One row per run of sizes with the same algorithm; the last one without a limit."""
    merged: list[Decision] = []
    for row in rows:
        if merged and merged[-1].algorithm == row.algorithm:
            merged.pop()
        merged.append(row)
    last = merged[-1]
    return [*merged[:-1], Decision(last.op, _UNLIMITED, last.algorithm, last.seconds)]


class Model:
    """Predicts how long a collective takes over given links. ``work``: seconds of each end of a message."""

    def __init__(self, costs: PairCosts, work: float = WORK_SECONDS) -> None:
        self._costs = costs
        self._work_seconds = work
        self._n = costs.size
        self.tree = best_tree(costs, self._paths)
        self.ring = best_ring(costs)

    def at_work(self, work: float) -> Model:
        """Of the same links, where each end of a message costs ``work`` seconds."""
        other = copy(self)
        other._work_seconds = work
        return other

    def seconds(self, op: str, algorithm: str, size: int) -> float:
        """``size`` in bytes as the op's caller counts them; infinite for what should not be used at that size."""
        formulas: dict[str, Callable[[str, float], float]] = {
            "once": self._once,
            "pieces": self._direct,
            "doubling": self._doubling,
            "tree": self._tree,
            "ring": self._ring,
        }
        # Everything below counts in bytes of the whole array.
        whole = float(size * self._n if op == "all_gather" else size)
        return formulas[algorithm](op, whole)

    @cached_property
    def _paths(self) -> list[dict[int, Route]]:
        return [cheapest_routes(self._costs, rank) for rank in range(self._n)]

    @cached_property
    def _farthest(self) -> float:
        return max(path.latency for paths in self._paths for path in paths.values())

    def _work(self, messages: float) -> float:
        """Of one rank that sends and receives so many messages."""
        return 2 * messages * self._work_seconds * self._costs.crowding

    def _busiest(self, flows: Iterable[tuple[int, int, float]]) -> float:
        """Seconds that the pair needs that has most to carry; flows are (from, to, bytes) over their paths."""
        loads: dict[tuple[int, int], float] = {}
        for source, target, size in flows:
            hops = self._paths[source][target].hops
            for pair in itertools.pairwise(hops):
                loads[pair] = loads.get(pair, 0.0) + size
        return max((load * pair_cost(self._costs, *pair)[1] for pair, load in loads.items()), default=0.0)

    def _forwarding(self, flows: Iterable[tuple[int, int, float]]) -> float:
        """Of the rank through which most of the messages pass."""
        between = Counter(rank for a, b, _ in flows for rank in self._paths[a][b].hops[1:-1])
        return max(between.values(), default=0) * _FORWARD_SECONDS * self._costs.crowding

    def _pairs(self, size: float) -> list[tuple[int, int, float]]:
        return [(a, b, size) for a in range(self._n) for b in range(self._n) if a != b]

    def _once(self, op: str, whole: float) -> float:
        if whole > _LARGEST_COPIED:
            return math.inf
        flows = self._pairs(whole)
        return self._farthest + self._busiest(flows) + self._forwarding(flows) + self._work(self._n - 1)

    def _direct(self, op: str, whole: float) -> float:
        rounds = 2 if op == "all_reduce" else 1
        if op == "broadcast":
            load = max(self._busiest((root, b, whole) for b in range(self._n) if b != root) for root in range(self._n))
            return self._farthest + load + self._work(self._n - 1)
        if op == "reduce":
            load = max(self._busiest((a, root, whole) for a in range(self._n) if a != root) for root in range(self._n))
            return self._farthest + load + self._work(self._n - 1)
        flows = self._pairs(rounds * whole / self._n)
        return rounds * (self._farthest + self._forwarding(flows) + self._work(self._n - 1)) + self._busiest(flows)

    def _doubling(self, op: str, whole: float) -> float:
        copied = whole * (1 if op == "all_gather" else self._n)
        if copied > _LARGEST_COPIED * self._n:
            return math.inf
        part = whole / self._n if op == "all_gather" else whole
        total, have = 0.0, 1
        while have < self._n:
            size = min(have, self._n - have) * part
            flows = [(rank, (rank + have) % self._n, size) for rank in range(self._n)]
            farthest = max(self._paths[a][b].latency for a, b, _ in flows)
            total += farthest + self._busiest(flows) + self._forwarding(flows) + self._work(1)
            have *= 2
        return total

    def _tree(self, op: str, whole: float) -> float:
        assert self.tree is not None
        parents = self.tree
        depths = []
        for rank in range(self._n):
            alpha, at = 0.0, rank
            while parents[at] >= 0:
                alpha += pair_cost(self._costs, at, parents[at])[0] + self._work(1)
                at = parents[at]
            depths.append(alpha)
        depth = max(depths)
        slowest = max(pair_cost(self._costs, rank, up)[1] for rank, up in enumerate(parents) if up >= 0)
        degree = max(parents.count(rank) + (parents[rank] >= 0) for rank in range(self._n))
        # Up and down; where all ranks give or get different parts, those of the other side of a link cross it.
        passes = 2 if op in ("all_reduce", "barrier") else 1
        latency = passes * depth if op in ("all_reduce", "barrier", "broadcast", "reduce") else 2 * depth
        fill = min(whole / 8, _CHUNK_BYTES) * slowest * passes
        messages = max(1.0, whole / _CHUNK_BYTES)
        return latency + whole * slowest + fill + self._work(degree * messages * passes)

    def _ring(self, op: str, whole: float) -> float:
        assert self.ring is not None
        pairs = list(zip(self.ring, (*self.ring[1:], self.ring[0]), strict=True))
        alpha = max(pair_cost(self._costs, a, b)[0] for a, b in pairs)
        beta = max(max(pair_cost(self._costs, a, b)[1], pair_cost(self._costs, b, a)[1]) for a, b in pairs)
        steps = (self._n - 1) * (2 if op == "all_reduce" else 1)
        # Half of the data each way around, so every pair carries half of it per step in each direction.
        return steps * (alpha + self._work(2)) + steps * whole / self._n / 2 * beta
