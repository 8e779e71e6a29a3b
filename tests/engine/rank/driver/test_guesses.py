"""What is guessed, how many tokens at once, and when it is given up."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine.rank.driver.guesses import (
    FIRST_WAIT,
    LONGEST,
    LONGEST_WAIT,
    SHORTEST,
    TRIED,
    Guesses,
    Lookup,
    lookup_of,
)
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.speculation import SELDOM, Speculation, StepCost
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.types import SamplingParams

LIMITS = Limits(512, 99999, 8, context=9999)


def looked_up(tokens: list[int], most: int) -> tuple[int, ...]:
    """As `Lookup.guess`, by comparing all."""
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        for begin in range(len(tokens) - length - 1, -1, -1):
            if tokens[begin : begin + length] == tokens[-length:]:
                follows = tokens[begin + length :]
                return tuple((follows * most)[:most])
    return ()


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 9), st.integers(0, 40))
def test_the_longest_and_newest_place_that_reads_as_the_end_says_what_follows(
    tokens: list[int], most: int, first: int
) -> None:
    lookup = Lookup()
    lookup.guess(tokens[:first], most)  # what comes later is added
    assert lookup.guess(tokens, most) == looked_up(tokens, most)


def test_what_repeats_itself_goes_on() -> None:
    assert Lookup().guess([9, 1, 2, 3, 1, 2], 4) == (3, 1, 2, 3)
    assert Lookup().guess([5, 5, 5], 4) == (5, 5, 5, 5)
    assert Lookup().guess([1, 2, 3, 4], 4) == ()
    assert Lookup().guess([], 4) == ()


def test_a_text_that_was_foretold_is_guessed_from_its_first_token_on() -> None:
    lookup = lookup_of([8, 9, 1, 2], [5, 6, 7, 5, 4])
    assert lookup.guess([8, 9, 1, 2], 3) == (5, 6, 7)
    assert lookup.guess([8, 9, 1, 2, 5, 6], 9)[:3] == (7, 5, 4)
    assert lookup.guess([8, 9, 1, 2, 5, 6, 3, 3, 7, 5], 1) == (4,), "and where it goes on after something else"


def measured(base: float, more: float, answers: int = 1) -> StepCost:
    """Of steps that take ``base`` and ``more`` for each token, with some noise."""
    random, cost = Random(1), StepCost()
    for step in range(200):
        tokens = answers * (1, 5, 9)[step % 3]
        cost.took(tokens, (base + more * tokens) * random.uniform(0.97, 1.03))
    return cost


@pytest.mark.parametrize("answers", [1, 8])
def test_the_cost_of_a_token_is_measured(answers: int) -> None:
    cost = measured(10e-3, 0.5e-3, answers)
    assert cost.relative == pytest.approx(0.05, rel=0.3)
    assert measured(1e-3, 1e-3, answers).relative > 0.3
    assert cost.price(4) == pytest.approx(4 * 0.5 / (10 + 4 * 0.5), rel=0.3)
    cost.took(5, 10.0)  # one step was held up
    assert cost.relative == pytest.approx(0.05, rel=1.0)
    for _ in range(500):
        cost.took(1, 10e-3)
    assert cost.alike
    assert cost.relative == pytest.approx(0.03, rel=0.1), "what is not known any more is assumed"


def test_as_many_are_guessed_as_pay() -> None:
    """Tokens per second with a number of guesses, whose chance is the same each, are the most at what is chosen."""
    for base, more, chance, answers in ((10, 0.1, 0.8, 1), (10, 1, 0.8, 1), (10, 1, 0.5, 4), (1, 2, 0.9, 1)):
        guesses = Guesses(true=chance * 100, false=(1 - chance) * 100)
        step = base + answers * more
        rates = [
            sum(chance**place for place in range(count + 1)) / (step + answers * count * more) for count in range(17)
        ]
        assert guesses.worth(answers * more / step, 16) == rates.index(max(rates))


def sequence(tokens: list[int], **params: Any) -> Sequence:
    """All of its tokens but one are computed."""
    return Sequence(1, tokens, 1, SamplingParams(**params), cached=len(tokens) - 1)


def drive(speculation: Speculation, tokens: int, *, right: bool) -> list[int]:
    """How many are guessed in each step of an answer of so many ``tokens``, which all come true or none."""
    one, counts = sequence([1, 2, 3] * 9), list[int]()
    for _ in range(tokens):
        found = speculation.drafts(one, 99, 1)
        counts.append(len(found))
        speculation.learn(one, len(found), len(found) * right)
        one.tokens.append(one.tokens[-3])
        one.cached += 1
    return counts


def test_guesses_that_come_true_grow_and_wrong_ones_end() -> None:
    cost = measured(10e-3, 0.3e-3)
    assert drive(Speculation(8, (), LIMITS, cost=cost), 50, right=True)[-40:] == [8] * 40
    wrong = Speculation(8, (), LIMITS, cost=cost)
    counts = drive(wrong, 2000, right=False)
    assert counts[0] > 4
    pauses = [len(run) for run in "".join("x" if each else "." for each in counts).split("x") if len(run) >= FIRST_WAIT]
    assert pauses[0] < FIRST_WAIT + 4
    assert pauses[:-1] == sorted(pauses[:-1])
    assert LONGEST_WAIT <= pauses[-2] < LONGEST_WAIT + 4, "it is tried again, ever less often"
    assert sum(counts) < 250
    assert (wrong.drafted, wrong.accepted) == (sum(counts), 0)


def test_where_a_token_costs_a_step_nothing_is_guessed() -> None:
    counts = drive(Speculation(8, (), LIMITS, cost=measured(0.1e-3, 5e-3, 4)), 300, right=False)
    assert sum(counts[20:]) <= 5 * TRIED, "but now and then, to see"
    assert counts.count(0) > 200


def test_no_token_is_guessed_that_may_end_an_answer() -> None:
    speculation = Speculation(8, {3}, replace(LIMITS, context=20, short=15))
    assert speculation.drafts(sequence([1, 2, 3, 1]), 8, 1) == ()
    assert speculation.drafts(sequence([0, 1, 2, 3, 0, 1]), 8, 1) == (2,)
    assert speculation.drafts(sequence([0, 1, 2, 0, 1], stop_token_ids=(2,)), 8, 1) == ()
    again = [5, 6] * 5
    assert speculation.drafts(sequence(again, max_tokens=12), 8, 1) == (5, 6)
    assert speculation.drafts(sequence(again, max_tokens=10), 8, 1) == ()
    assert speculation.drafts(sequence([*again, 5, 6, 5]), 8, 1) == (6, 5), "with more it were a long one"
    long = sequence([*again, *again[:7]])
    long.long = True
    assert speculation.drafts(long, 8, 1) == (6, 5)


def test_where_nothing_is_found_steps_need_not_wait_for_a_look() -> None:
    speculation, one = Speculation(8, (), LIMITS), sequence(list(range(SELDOM)))
    assert not speculation.may_run_ahead(one)
    for token in range(SELDOM):
        assert speculation.drafts(one, 8, 1) == ()
        one.tokens.append(100 + token)
        one.cached += 1
    waits = []
    for token in range(4 * SELDOM):
        waits.append(speculation.may_run_ahead(one))
        one.tokens.append(token % 2)
        one.cached += 1
    assert waits.count(False) == 4
    assert speculation.drafts(one, 8, 1) != ()
    assert not speculation.may_run_ahead(one)
    one.guesses.stop(len(one.tokens))
    assert speculation.may_run_ahead(one)


def test_steps_differ_until_their_cost_is_known() -> None:
    speculation, one = Speculation(8, (), LIMITS), sequence([1, 2] * 9)
    one.guesses = Guesses(true=99, false=0.1)
    counts = []
    for _ in range(40):
        counts.append(len(speculation.drafts(one, 99, 1)))
        speculation.cost.took(1 + counts[-1], 10e-3 + 1e-4 * counts[-1])
    assert counts[:3] == [8, 4, 8]
    assert set(counts) == {4, 8}
    assert counts.count(8) > 30
