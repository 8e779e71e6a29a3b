"""Pure arithmetic of cutting a model: heads over ranks, ranges into parts."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.errors import PlanError

Range = tuple[int, int]


def no_plan(kind: str, architecture: str) -> str:
    """Reason why ``architecture`` is not split the ``kind`` way (tensor parallel, pipeline, expert parallel)."""
    return f"transformers has no {kind} plan for {architecture}"


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
    """Query and key/value heads that one rank holds.

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
