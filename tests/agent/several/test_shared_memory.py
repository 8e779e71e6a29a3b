"""Memory that models share on the devices of a cluster's hosts, and which of them goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ferrule.agent.placement.shared import Part, SharedMemory, first_to_go, lacking, parts_of
from ferrule.model import read_model
from ferrule.plan import DeviceSpec, make_plan, rank_memory

GB = 10**9
CPU = DeviceSpec("a", 20 * GB, 1e9, {"fp32": 1e12}, runtime_bytes=GB, host="a", device="cpu")
CARD = replace(CPU, name="cuda of a", device="cuda:0", memory=8 * GB)


def test_what_others_hold_and_may_still_take_is_not_free() -> None:
    loaded = {"other": [Part("a", "cpu", 6 * GB, GB), Part("b", "cpu", 6 * GB, GB)], "own": [Part("a", "cpu", GB, 0)]}
    memory = SharedMemory("own", lambda: loaded)
    alone = memory.emptied(CPU)
    assert alone.memory == 25 * GB  # 5 of the other one are taken
    assert memory.left(alone).memory == 19 * GB  # it may take one more
    assert memory.left(alone, ["other"]).memory == 25 * GB
    assert memory.left(memory.emptied(CARD)).memory == 8 * GB
    loaded["third"] = [Part("a", "cuda:0", 3 * GB, 0), Part("a", "cpu", 2 * GB, 0)]
    assert memory.left(alone).memory == 17 * GB  # a report stays of use
    limited = SharedMemory("own", lambda: loaded, 10 * GB, standby=True)
    assert [limited.left(each).memory for each in (alone, CARD)] == [2 * GB, 5 * GB]
    assert limited.left(alone).runtime_bytes == 2 * GB
    loaded["fourth"] = [Part("a", "cpu", 5 * GB, 0)]
    assert limited.left(alone).memory == 1  # a device has some


def test_parts_are_the_ranks_memory_and_tell_where_they_lack() -> None:
    model = read_model("llama-3.1-8b")
    plan = make_plan(model, tensor=2)
    uses = rank_memory(model, plan, context=2048)
    parts = parts_of(model, plan, ("a", "a"), ("cpu", "cuda:0"), context=2048, standby=True)
    assert parts[1] == Part("a", "cuda:0", uses[1].total + uses[1].runtime, uses[1].cache)
    streamed = parts_of(model, plan, ("a", "a"), ("cpu", "cpu"), context=2048, standby=False, weights=GB)
    assert [uses[0].total - each.total for each in streamed] == [use.weights - GB for use in uses]
    assert lacking(parts, [CPU, replace(CARD, memory=20 * GB)]) == ""
    both = [Part("a", "cpu", 12 * GB, 0), Part("a", "cpu", 12 * GB, 0), Part("c", "cpu", 99 * GB, 0)]
    assert lacking(both, [CPU]) == "cpu of a needs 22.4 GiB and has 18.6 GiB"


@pytest.mark.parametrize(
    ("sizes", "need", "first"),
    [
        ({"x": 1, "y": 5, "z": 5}, 4, "y"),  # x alone would not do, and is spared
        ({"x": 1, "y": 5, "z": 5}, 6, "x"),  # with y it does, and z was used last
        ({"x": 1, "y": 5, "z": 5}, 10, "y"),
        ({"x": 1, "y": 5, "z": 5}, 12, None),
        ({}, 1, None),
    ],
)
def test_what_was_used_last_stays_if_it_can(sizes: dict[str, int], need: int, first: str | None) -> None:
    async def fits(gone: Sequence[str]) -> bool:
        return sum(sizes[each] for each in gone) >= need

    assert asyncio.run(first_to_go(list(sizes), fits)) == first
