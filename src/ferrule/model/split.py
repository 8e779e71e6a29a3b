"""Pure arithmetic of cutting a model: heads over ranks, ranges into parts, layers into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ferrule.errors import PlanError

Range = tuple[int, int]


def part_of(total: int, part: int, parts: int, what: str = "size") -> Range:
    """The half-open range of ``range(total)`` that ``part`` of ``parts`` equal parts holds.

    Raises `PlanError` (naming ``what``) where ``total`` does not divide by ``parts``.
    """
    if total % parts:
        raise PlanError(f"{what} {total} does not divide by {parts} ranks; use a --tp that divides {total}")
    size = total // parts
    return part * size, (part + 1) * size


@dataclass(frozen=True)
class HeadSplit:
    """Which query and key/value heads one rank holds.

    With fewer key/value heads than ranks several ranks hold the same one (``replicas`` of them each), so that every
    query head finds its key/value head on its own rank.
    """

    query: Range
    key_value: Range
    replicas: int

    @property
    def query_heads(self) -> int:
        return self.query[1] - self.query[0]

    @property
    def key_value_heads(self) -> int:
        return self.key_value[1] - self.key_value[0]


def split_heads(query_heads: int, key_value_heads: int, part: int, parts: int) -> HeadSplit:
    """Give ``part`` of ``parts`` ranks its heads, keeping each query head with its key/value head.

    Query head ``q`` reads key/value head ``q // (query_heads // key_value_heads)`` (grouped-query attention, Ainslie
    et al. 2023). Raises `PlanError` where that cannot be kept with equal parts.
    """
    if query_heads % key_value_heads:
        raise PlanError(f"{query_heads} attention heads do not divide by {key_value_heads} key/value heads")
    query = part_of(query_heads, part, parts, "the number of attention heads")
    if key_value_heads % parts == 0:
        return HeadSplit(query, part_of(key_value_heads, part, parts), 1)
    if parts % key_value_heads == 0:
        replicas = parts // key_value_heads
        return HeadSplit(query, (part // replicas, part // replicas + 1), replicas)
    raise PlanError(
        f"{key_value_heads} key/value heads cannot be shared evenly by {parts} ranks; "
        f"use a --tp that divides {key_value_heads} or is a multiple of it"
    )


def split_layers(layer_bytes: Sequence[int], stages: int, first_extra: int = 0, last_extra: int = 0) -> list[Range]:
    """Cut the layers into ``stages`` runs so that the largest stage is as small as possible.

    ``first_extra`` and ``last_extra`` are bytes that the first stage (embedding) and the last (norm, head) hold
    beside their layers. Every stage gets at least one layer. Exact, by dynamic programming in O(stages * layers^2).
    Among equally good cuts the one with more layers in earlier stages is taken, so the result is deterministic.
    """
    layers = len(layer_bytes)
    if stages > layers:
        raise PlanError(f"{layers} layers cannot fill {stages} pipeline stages; use --pp {layers} or less")
    before = [0]
    for size in layer_bytes:
        before.append(before[-1] + size)

    def cost(stage: int, start: int, stop: int) -> int:
        size = before[stop] - before[start]
        return size + (first_extra if stage == 0 else 0) + (last_extra if stage == stages - 1 else 0)

    # best[stop] = (largest stage so far, the cuts that reach it), for the first `stage + 1` stages over `stop` layers
    best: dict[int, tuple[int, list[int]]] = {stop: (cost(0, 0, stop), [stop]) for stop in range(1, layers + 1)}
    for stage in range(1, stages):
        grown: dict[int, tuple[int, list[int]]] = {}
        for stop in range(stage + 1, layers + 1):
            options = [
                (max(best[start][0], cost(stage, start, stop)), -start) for start in range(stage, stop) if start in best
            ]
            largest, negative = min(options)
            grown[stop] = (largest, [*best[-negative][1], stop])
        best = grown
    cuts = [0, *best[layers][1]]
    return list(pairwise(cuts))
