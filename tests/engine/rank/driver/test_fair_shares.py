"""Whose prompts are computed first: priorities, fair shares of queues, and no starvation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.driver.shares import MOST_IDLE, Shares
from ferrule.engine.turn import Turn
from ferrule.engine.types import SamplingParams


def params(queue: str = "", priority: int = 0, tokens: int | None = 1) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True, turn=Turn(queue, priority))


def steps(scheduler: Scheduler) -> Iterator[Batch]:
    while (batch := scheduler.next_batch()) is not None:
        yield batch
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))


def run(scheduler: Scheduler, count: int) -> None:
    for _ in range(count):
        batch = scheduler.next_batch()
        assert batch is not None
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))


def first_tokens(scheduler: Scheduler) -> list[int]:
    """Sequences in the order of their first tokens."""
    found = [span.sequence for batch in steps(scheduler) for span in batch.spans if span.sample]
    return list(dict.fromkeys(found))


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(1, 300), min_size=1, max_size=12), min_size=2, max_size=4
    ),
    st.integers(4, 64),
    st.integers(4, 12),
)
@example({"a": [12], "b": [28, 1], "c": [1, 1, 2, 2, 1]}, 17, 4)
def test_no_queue_with_prompts_waiting_gets_more_than_a_step_ahead(
    prompts: dict[str, list[int]], batch_tokens: int, sequences: int
) -> None:
    scheduler = Scheduler(Limits(batch_tokens, 100_000, sequences, 1000), frozenset())
    queues: dict[int, str] = {}
    left = Counter[str]()
    for queue, lengths in prompts.items():
        for length in lengths:
            scheduler.add(len(queues), [1] * length, params(queue))
            queues[len(queues)] = queue
            left[queue] += length
    ends = max(sequences, *map(len, prompts.values()))  # last tokens of prompts are computed with those of answers
    computed = Counter[str]()
    for batch in steps(scheduler):
        for span in batch.spans:
            computed[queues[span.sequence]] += span.tokens
        waiting = [computed[queue] for queue in left if computed[queue] < left[queue]]
        if waiting:
            assert max(waiting) - min(waiting) <= batch_tokens + ends
    assert computed == left, "all prompts were computed, once"


def test_one_of_another_queue_does_not_wait_behind_many() -> None:
    scheduler = Scheduler(Limits(64, 100_000, 4, 1000), frozenset())
    for number in range(40):
        scheduler.add(number, [1] * 200, params("many"))
    run(scheduler, 20)
    scheduler.add(100, [1] * 200, params("one"))
    assert first_tokens(scheduler).index(100) <= 5  # four had begun


def test_who_comes_after_a_pause_has_neither_a_claim_nor_a_debt() -> None:
    shares = Shares()
    shares.joins("one", ())
    shares.took("one", 500)
    shares.joins("two", ["one"])
    assert shares.of("two") == 500
    shares.took("two", 100)
    shares.joins("three", ["one", "two"])
    assert shares.of("three") == 500
    shares.took("one", 1000)
    shares.joins("two", ["one"])  # all of its sequences had ended
    assert shares.of("two") == 1500
    shares.joins("one", ["two"])
    assert shares.of("one") == 1500
    for number in range(3 * MOST_IDLE):
        shares.joins(f"once {number}", ["one", "two"])
        shares.took("one", 1)
        shares.took("two", 1)
    assert len(vars(shares)["_computed"]) <= MOST_IDLE + 3, "keys come and go"


def test_priorities_come_first() -> None:
    scheduler = Scheduler(Limits(16, 100_000, 2, 1000), frozenset())
    for number, priority in enumerate((5, 0, 1, 0, -3)):
        scheduler.add(number, [1] * 40, params("abcde"[number], priority))
    assert first_tokens(scheduler) == [4, 1, 3, 2, 0]


def test_those_of_lower_priority_give_their_places_and_go_on_later() -> None:
    """Where all places are taken, and where the cache is full."""
    for limits in (Limits(16, 100_000, 2, 1000), Limits(16, 110, 8, 100)):
        scheduler = Scheduler(limits, frozenset())
        for number, priority in ((0, 1), (1, 2)):
            scheduler.add(number, [1] * 40, params("", priority, tokens=9))
        run(scheduler, 8)
        assert min(each.generated for each in scheduler.running) > 0
        scheduler.add(2, [1] * 40, params("", 0, tokens=3))
        batch = scheduler.next_batch()
        assert batch is not None
        assert batch.released == (1,), "the last one"
        assert [each.identity for each in scheduler.running] == [2, 0]
        scheduler.add(3, [1] * 2, params("", 2, tokens=9))
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))
        for _ in steps(scheduler):
            waiting = {each.identity for each in scheduler.waiting}
            assert waiting != {1}, "it keeps its place before those that came later"
        assert not scheduler.by_identity


def test_a_prompt_that_lacks_room_is_passed_by_no_more_tokens_than_it_has() -> None:
    scheduler = Scheduler(Limits(64, 200, 8, 190), frozenset())
    scheduler.add(0, [1] * 50, params(tokens=None))  # which holds its room
    first = scheduler.next_batch()
    assert first is not None
    scheduler.complete(first, [5])
    scheduler.add(1, [1] * 160, params())
    passed = 0
    for number in range(2, 40):
        scheduler.add(number, [1] * 20, params())
        batch = scheduler.next_batch()
        assert batch is not None
        passed += sum(span.tokens for span in batch.spans if span.sequence >= 2)
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))
    assert passed == 160
