"""Which rank sends which heads to which: every head that is needed comes once, from one that has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine.rank.handover.parts import Delivery, Held, deliveries, first_heads
from ferrule.engine.rank.step.operations import CacheLayer
from ferrule.errors import EngineError
from ferrule.model import split_heads
from ferrule.model.layer import Share
from ferrule.plan import Shard

LAYERS = 3


def ranks(heads: int, readers: int, count: int, stages: int) -> list[list[Held]]:
    """A group of ``stages`` of ``count`` ranks each."""
    parts = split_heads(heads * readers, heads, [1.0] * count)
    borders = [stage * LAYERS // stages for stage in range(stages + 1)]
    return [
        [Held(layer, part.key_value[0], part.key_value_heads, 64) for layer in range(borders[s], borders[s + 1])]
        for s in range(stages)
        for part in parts
    ]


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
def test_every_rank_gets_each_of_its_heads_once(
    heads: int, readers: int, one: int, other: int, stages: int, others: int
) -> None:
    most = heads * readers
    prompts, answers = ranks(heads, readers, min(one, most), stages), ranks(heads, readers, min(other, most), others)
    found = deliveries(prompts, answers)
    for rank, held in enumerate(answers):
        wanted = sorted((each.layer, head) for each in held for head in range(each.first, each.first + each.heads))
        mine = [each for each in found if each.to == rank]
        assert sorted((each.layer, each.first + at) for each in mine for at in range(each.heads)) == wanted
    for each in found:
        having = [held for held in prompts[each.source] if held.layer == each.layer]
        assert all(held.first <= each.first and each.first + each.heads <= held.first + held.heads for held in having)
        assert having


def test_ranks_that_have_the_same_head_take_turns() -> None:
    latents = [[Held(0, 0, 1, 64)] for _ in range(2)]
    assert deliveries(latents, latents) == [Delivery(0, 0, 0, 0, 1), Delivery(1, 1, 0, 0, 1)]


def test_what_no_rank_has_or_keeps_otherwise_is_refused() -> None:
    need = [[Held(0, 0, 2, 64)]]
    with pytest.raises(EngineError, match="head 1 of layer 0"):
        deliveries([[Held(0, 0, 1, 64)]], need)
    with pytest.raises(EngineError, match=r"32 bytes.*--kv-cache"):
        deliveries([[Held(0, 0, 2, 32)]], need)


def test_latents_and_whole_attention_begin_with_the_first_head() -> None:
    def shard(part: int) -> Shard:
        return Shard(part, 0, 0, 3, part, 2, True, True, (Share.even(2), Share.even(2)))

    layers = [CacheLayer(2, 64, 64), CacheLayer(1, 80, 64), CacheLayer(4, 64, 64)]
    assert first_heads(layers, shard(0), 8, 4) == [0, 0, 0]
    assert first_heads(layers, shard(1), 8, 4) == [2, 0, 0]
