"""Which rank that computes prompts sends which heads to which rank that computes answers. Pure.

Groups may be cut differently: a rank gets each of its heads from one that has it, and where several have it (latents,
heads that several ranks share) the ranks that need it take turns, so that the links between hosts carry alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ferrule.engine.rank.step.operations import CacheLayer
from ferrule.errors import EngineError
from ferrule.model import split_heads
from ferrule.plan import Shard


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Key/value heads of a layer that a rank has: ``heads`` of them, from ``first`` on. ``size``: bytes of a block of
    one of them."""

    layer: int
    first: int
    heads: int
    size: int


class Delivery(NamedTuple):
    """Heads of a layer that rank ``source`` of those for prompts sends to rank ``to`` of those for answers; each group
    counts its own from 0."""

    source: int
    to: int
    layer: int
    first: int
    heads: int


def first_heads(layers: Sequence[CacheLayer], shard: Shard, heads: int, key_value_heads: int) -> list[int]:
    """Of each of a rank's ``layers`` the first key/value head that it has. ``heads`` and ``key_value_heads``: of the
    whole model; latents are the same on every rank."""
    if shard.parts == 1:
        return [0] * len(layers)
    first, last = split_heads(heads, key_value_heads, [share.query for share in shard.shares])[shard.part].key_value
    return [first if each.heads == last - first and each.width == each.value_width else 0 for each in layers]


def deliveries(
    prompts: Sequence[Sequence[Held]], answers: Sequence[Sequence[Held]], own: Sequence[int | None] = ()
) -> list[Delivery]:
    """All that has to go over, by what each rank of both groups holds. ``own``: for each rank of ``answers`` which of
    ``prompts`` it is itself, whose heads it takes first. Raises `EngineError` where the ranks for prompts lack a head,
    or keep it in another form."""
    having: dict[int, list[tuple[int, Held]]] = {}
    for source, held in enumerate(prompts):
        for each in held:
            having.setdefault(each.layer, []).append((source, each))
    found: list[Delivery] = []
    for to, held in enumerate(answers):
        for need in held:
            at = need.first
            while at < need.first + need.heads:
                able = [one for one in having.get(need.layer, ()) if one[1].first <= at < one[1].first + one[1].heads]
                if not able:
                    raise EngineError(f"no rank that hands over has head {at} of layer {need.layer}")
                here = [one for one in able if own and one[0] == own[to]]
                source, has = here[0] if here else able[to % len(able)]
                if has.size != need.size:
                    raise EngineError(
                        f"layer {need.layer} is kept in {has.size:,} bytes per block and head where it comes from, and "
                        f"in {need.size:,} where it goes; give both the same --dtype and --kv-cache"
                    )
                count = min(has.first + has.heads, need.first + need.heads) - at
                found.append(Delivery(source, to, need.layer, at, count))
                at += count
    return found
