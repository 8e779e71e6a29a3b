"""A draft model's cache follows its sequences, and what it costs decides how much it guesses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ferrule.engine.devices import open_device
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.draft.model import DraftModel, Kept
from ferrule.engine.rank.driver.drafting import Drafting
from ferrule.engine.rank.driver.guesses import lookup_of
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.pace import Line, Pace
from ferrule.engine.rank.driver.speculation import Speculation, StepCost
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.types import SamplingParams

VOCABULARY, END = 50, 49
LIMITS = Limits(512, 99999, 8, context=9999)


class Counting:
    """Runner of a model that counts on: after each token it finds the next number likeliest. ``cached``: as its caches
    hold them, which no batch may see more of, or less, than there is."""

    def __init__(self) -> None:
        self.device = open_device("cpu", 1)
        self.cached: dict[int, list[int]] = {}
        self.batches: list[Batch] = []

    def run(self, batch: Batch, features: Any = ()) -> torch.Tensor:
        self.batches.append(batch)
        for identity in batch.released:
            del self.cached[identity]
        at, rows = 0, []
        for span in batch.spans:
            before = self.cached.setdefault(span.sequence, [])
            assert span.seen <= len(before)
            new = batch.tokens[at : at + span.tokens]
            self.cached[span.sequence] = [*before[: span.seen], *new]
            at += span.tokens
            if span.sample:
                rows.append((new[-1] + 1) % VOCABULARY)
        return torch.nn.functional.one_hot(torch.tensor(rows, dtype=torch.long), VOCABULARY).float()


def sequence(identity: int, tokens: list[int], **params: Any) -> Sequence:
    """All of its tokens but one are computed."""
    return Sequence(identity, tokens, 1, SamplingParams(**params), cached=len(tokens) - 1)


def model(**given: Any) -> tuple[Any, DraftModel]:
    runner: Any = Counting()
    return runner, DraftModel(runner, **{"vocabulary": VOCABULARY, "longest": 100, "room": 1000, "most": 64} | given)


def test_what_came_true_stays_in_the_cache_and_the_rest_is_cut_off() -> None:
    runner, draft = model()
    one, other = sequence(1, [3, 9, 4]), sequence(2, [7])
    assert draft.guess({one: 3, other: 1}, (), 64) == {1: [5, 6, 7], 2: [8]}
    assert [len(batch.tokens) for batch in runner.batches] == [4, 1, 1]
    assert runner.cached == {1: [3, 9, 4, 5, 6], 2: [7]}
    one.tokens += [5, 20]  # the second one was wrong
    other.tokens += [8, 9]
    runner.batches.clear()
    assert draft.guess({one: 2, other: 2}, (), 64) == {1: [21, 22], 2: [10, 11]}
    assert [(span.seen, span.tokens) for span in runner.batches[0].spans] == [(4, 1), (1, 2)]
    assert runner.cached == {1: [3, 9, 4, 5, 20, 21], 2: [7, 8, 9, 10]}
    draft.keep({2})
    assert draft.guess({other: 1}, (), 64) == {2: [10]}, "also where nothing has come since"
    assert runner.cached == {2: [7, 8, 9]}


@pytest.mark.parametrize(
    ("kept", "tokens", "left"),
    [
        (Kept(0, []), [1, 2], 0),
        (Kept(2, [3, 4]), [1, 2, 3, 4, 5], 4),
        (Kept(2, [3, 4]), [1, 2, 9], 2),
        (Kept(2, [3, 4]), [1, 2, 3], 2),
        (Kept(3, []), [1, 2, 3], 2),
    ],
)
def test_one_token_at_least_is_computed(kept: Kept, tokens: list[int], left: int) -> None:
    kept.settle(tokens)
    assert (kept.tokens, kept.guesses) == (left, [])


def test_nothing_is_guessed_behind_an_end() -> None:
    _, draft = model()
    assert draft.guess({sequence(1, [46]): 9, sequence(2, [END - 1]): 9}, (END,), 64) == {1: [47, 48]}


def test_a_prompt_is_caught_up_with_in_pieces() -> None:
    runner, draft = model()
    late, ready = sequence(1, [1] * 40), sequence(2, [5])
    found = [draft.guess({late: 2, ready: 1}, (), 16) for _ in range(3)]
    assert found == [{2: [6]}, {2: [6]}, {1: [2, 3], 2: [6]}]
    assert [span.tokens for batch in runner.batches for span in batch.spans if span.sequence == 1] == [16, 16, 8, 1]
    assert [span.known for batch in runner.batches for span in batch.spans if span.sequence == 1] == [40, 0, 0, 0]
    assert draft.seconds.y == 0.0, "steps with pieces of prompts do not tell what guesses cost"


def test_no_more_is_kept_than_there_is_room_for() -> None:
    runner, draft = model(room=50)
    long, short, unknown = sequence(1, [1] * 40), sequence(2, [5] * 9), sequence(3, [VOCABULARY, 1])
    assert draft.guess({long: 4, short: 4, unknown: 4}, (), 64) == {1: [2, 3, 4, 5]}
    draft.keep({2})
    assert draft.guess({short: 4}, (), 64) == {2: [6, 7, 8, 9]}
    assert set(runner.cached) == {2}
    assert draft.guess({sequence(4, [1] * 97): 4}, (), 64) == {}, "it would be longer than the draft model takes"


def drafting(runner_seconds: float, **given: Any) -> Drafting:
    _, draft = model(longest=9999, room=99999, **given)
    draft.seconds = Line(runner_seconds, known=True)
    return Drafting(8, (END,), LIMITS, draft=draft, step_seconds=10e-3)


def test_what_a_draft_model_takes_is_part_of_the_price() -> None:
    free, costly = drafting(0.0), drafting(5e-3)
    assert free.price(1) == pytest.approx(Speculation(8, (), LIMITS).price(1))
    assert costly.price(1) == pytest.approx((0.03 + 0.5) / 1.03)
    for _ in range(99):  # steps turn out to take longer
        costly.took(1, 50e-3, prompts=False)
    assert costly.price(1) == pytest.approx((0.03 + 0.1) / 1.03, rel=0.1)


def test_a_slow_one_guesses_less_and_one_that_does_not_pay_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    def sevens(_: DraftModel, wanted: dict[Sequence, int], *given: Any) -> dict[int, list[int]]:
        return {each.identity: [7] * count for each, count in wanted.items()}

    counts = []
    for seconds in (0.1e-3, 4e-3, 30e-3):
        one, speculation = sequence(1, [1, 2, 3]), drafting(seconds)
        made = 0
        monkeypatch.setattr(DraftModel, "guess", sevens)
        for step in range(60):
            speculation.look_ahead([one], Pace())
            found = speculation.drafts(one, 99, 1)
            made += len(found)
            if found:
                speculation.learn(one, len(found), len(found) - (step % 4 == 0))
            one.tokens += [*found, 7]
            one.cached = len(one.tokens) - 1
            speculation.cost.took(1 + len(found), 10e-3 + 0.3e-3 * len(found))
        counts.append(made)
    assert counts[0] > counts[1] > counts[2] > 0


def test_the_draft_models_time_is_not_that_of_a_step() -> None:
    speculation = drafting(0.0)
    cost = StepCost()
    for count in range(20):
        speculation._spent = 4e-3
        speculation.took(count % 3, 14e-3 + count % 3 * 1e-3, prompts=False)
        cost.took(count % 3, 10e-3 + count % 3 * 1e-3)
    assert speculation.cost == cost
    speculation._spent = 4e-3
    speculation.took(9, 1.0, prompts=True)
    assert (speculation.cost, speculation._spent) == (cost, 0.0)


def test_what_is_foretold_is_guessed_first() -> None:
    one, speculation = sequence(1, [1, 2, 3], predicted=(30, 31, 40)), drafting(0.0)
    one.guesses.lookup = lookup_of(one.tokens, one.params.predicted)
    speculation.look_ahead([one], Pace())
    assert speculation.drafts(one, 2, 1) == (30, 31)
    assert speculation.draft.kept == {}
    one.tokens += [5, 6]
    one.cached = len(one.tokens) - 1
    speculation.look_ahead([one], Pace())
    assert speculation.drafts(one, 2, 1) == (7, 8), "where it says nothing the draft model does"


def test_guesses_are_of_the_text_as_it_is() -> None:
    one, speculation = sequence(1, [1, 2, 3]), drafting(0.0)
    speculation.look_ahead([one], Pace())
    assert speculation.drafts(one, 2, 1) == (4, 5)
    one.tokens.append(9)
    assert speculation.drafts(one, 2, 1) == ()
    embedded: Any = SimpleNamespace(identity=5, remaining=1, pending=0, embedded=True)
    speculation.look_ahead([embedded], Pace())
    assert speculation._proposed == {}
