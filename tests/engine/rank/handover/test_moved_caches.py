"""A model that moves in mid-answer: its answers are those of one that stays, and prompts are not computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moved_ranks import Kept, Session, go_on
from prefix_ranks import add, answers, prompt
from test_any_schedule import laid_out
from test_hand_over import spec_of
from tiny_models import make

from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.handover.exchange import Exchange
from ferrule.fabric import Group
from ferrule.plan import Plan, make_plan

ORDERS = (
    add(1, prompt(7, 2 * BLOCK + 9), max_tokens=30),
    add(2, prompt(8, 40), max_tokens=90),
    add(3, (*prompt(7, 2 * BLOCK + 9)[: BLOCK + 3], *prompt(9, 70)), max_tokens=80),
)
"""The last one begins with a block of the first; the second has none. They are so long that they go on when the first
one, whose prompt is the longest, has begun."""
HELD, REUSED = 3, 4
"""Blocks of their prompts that are held at least, and with which they begin: the first and the last share one."""


def plan_of(name: str, directory: Path) -> Plan:
    spec = spec_of(directory)
    return make_plan(spec) if name == "one" else laid_out(name, spec)


def assert_not_computed_again(
    session: Session, made: dict[int, list[int]], expected: dict[int, list[int]], guesses: int = 0
) -> None:
    known = sum(len(each.prompt) + len(made[each.id]) for each in ORDERS)
    behind = sum(len(expected[each.id]) - len(made[each.id]) for each in ORDERS)
    assert session.computed <= known - REUSED * BLOCK + behind * (1 + guesses)


@pytest.mark.parametrize(
    ("family", "before", "after", "options"),
    [
        ("llama", "even", "stages", {}),
        ("llama", "one", "even", {"kv_cache": "int8"}),
        pytest.param("deepseek_v3", "stages", "even", {}, marks=pytest.mark.slow),
        pytest.param("gpt_oss", "both", "one", {}, marks=pytest.mark.slow),
        pytest.param("qwen3", "uneven", "both", {"kv_cache": "int4"}, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "experts alone", "uneven", {"speculate": 4}, marks=pytest.mark.slow),
    ],
)
def test_answers_go_on_on_other_ranks_with_the_keys_and_values_that_they_had(
    tmp_path: Path, family: str, before: str, after: str, options: dict[str, Any]
) -> None:
    directory = make(family, tmp_path)
    expected = answers(directory, ORDERS, **{k: v for k, v in options.items() if k != "speculate"}).tokens
    old = Session(directory, plan_of(before, directory), **options)
    new = None
    try:
        old.begin(ORDERS)
        held = old.hold()
        assert all(each.size > 0 and not each.reason for each in held)
        made = old.tokens()
        new = Session(directory, plan_of(after, directory), **options)
        taken = new.take_over(old)
        assert (taken.tokens, taken.reason) == (taken.asked, "")
        assert taken.tokens >= HELD * BLOCK
        assert go_on(new, ORDERS, made) == expected
        assert_not_computed_again(new, made, expected, options.get("speculate", 0))
    finally:
        old.stop()
        if new is not None:
            new.stop()


@pytest.mark.parametrize(
    ("family", "layout", "leaving"),
    [
        ("llama", "even", [1]),
        pytest.param("llama", "stages", [1], marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "even", [1], marks=pytest.mark.slow),
        pytest.param("qwen3", "both", [1, 3], marks=pytest.mark.slow),
    ],
)
def test_ranks_that_stay_go_on_with_those_that_take_the_places_of_others(
    tmp_path: Path, family: str, layout: str, leaving: list[int]
) -> None:
    directory = make(family, tmp_path)
    expected = answers(directory, ORDERS).tokens
    plan, kept = plan_of(layout, directory), Kept()
    old = Session(directory, plan, kept)
    new = None
    try:
        old.begin(ORDERS)
        old.hold(*leaving)
        made = old.tokens()
        old.stop()
        assert set(kept.held) == set(range(plan.world_size)) - set(leaving)
        new = Session(directory, plan, kept)
        assert go_on(new, ORDERS, made) == expected
        assert_not_computed_again(new, made, expected)
    finally:
        if new is not None:
            new.stop()


def test_what_is_lost_in_mid_move_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make("llama", tmp_path)
    expected = answers(directory, ORDERS).tokens
    old = Session(directory, plan_of("one", directory))
    new = None
    round_ = Exchange._round

    def losing(exchange: Exchange, group: Group, first: int, count: int) -> float:
        if first and exchange.taker is None:
            group.abort("a test ends it")
        return round_(exchange, group, first, count)

    monkeypatch.setattr(Exchange, "_round", losing)
    try:
        old.begin(ORDERS)
        old.hold()
        made = old.tokens()
        new = Session(directory, plan_of("even", directory))
        taken = new.take_over(old)
        assert taken.tokens in (0, BLOCK)  # the abort may overtake the end of the first round
        assert taken.asked > BLOCK
        assert taken.reason
        assert go_on(new, ORDERS, made) == expected
    finally:
        old.stop()
        if new is not None:
            new.stop()
