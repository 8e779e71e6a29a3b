"""Choice of a replica for a request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine.replicas.router import BLOCK, KNOWN_WORTH, KnownPrefixes, Load, Router, chain, choose

LOADS = st.dictionaries(
    st.integers(0, 7),
    st.builds(Load, st.integers(0, 50), st.floats(0.1, 10), st.floats(0, 1), st.integers(0, 99)),
    min_size=1,
)
PROMPT = list(range(100, 100 + 4 * BLOCK))


@given(LOADS)
def test_of_equal_replicas_that_know_nothing_the_least_loaded_is_chosen(loads: dict[int, Load]) -> None:
    equal = {number: Load(load.open, last=load.last) for number, load in loads.items()}
    assert equal[choose(equal)].open == min(load.open for load in equal.values())


@given(LOADS)
def test_no_other_replica_would_be_done_sooner_by_more_than_what_is_known_is_worth(loads: dict[int, Load]) -> None:
    chosen = choose(loads)
    fastest = max(load.speed for load in loads.values())
    waits = {number: (load.open + 1) * fastest / load.speed for number, load in loads.items()}
    assert waits[chosen] <= min(waits.values()) + KNOWN_WORTH * loads[chosen].known + 1e-9


@given(LOADS, st.integers(1, 5))
def test_more_requests_there_never_make_a_replica_more_likely(loads: dict[int, Load], more: int) -> None:
    chosen = choose(loads)
    other = next((number for number in loads if number != chosen), None)
    if other is not None:
        load = loads[other]
        assert choose(loads | {other: Load(load.open + more, load.speed, load.known, load.last)}) == chosen


def test_a_replica_that_is_twice_as_fast_has_twice_as_many_requests() -> None:
    router = Router(2)
    for _ in range(30):
        router.opened([1], {0: 1.0, 1: 2.0})
    assert router.open == [10, 20]


def test_equal_replicas_that_are_idle_take_turns() -> None:
    router = Router(3)
    chosen = []
    for _ in range(6):
        chosen.append(router.opened([1], {0: 1.0, 1: 1.0, 2: 1.0}))
        router.closed(chosen[-1])
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_known_beginning_keeps_requests_together_until_the_load_is_too_uneven() -> None:
    router, both = Router(2), {0: 1.0, 1: 1.0}
    first = router.opened(PROMPT, both)
    more = [router.opened([*PROMPT, number], both) for number in range(2)]
    assert more == [first, 1 - first], "there would be two more than at the other one"
    assert router.opened([*PROMPT, 9], {first: 1.0}) == first, "others are left out"


def test_what_a_lost_replica_knew_is_forgotten_and_adapters_are_apart() -> None:
    router, both = Router(2), {0: 1.0, 1: 1.0}
    router.closed(router.opened(PROMPT, {1: 1.0}))
    assert router.opened(PROMPT, both, "an adapter") == 0
    assert router.opened(PROMPT, both) == 1
    router.closed(0)
    router.closed(1)
    router.lost(1)
    router.closed(router.opened([1], {1: 1.0}))  # so that it is not its turn
    assert router.opened(PROMPT[: 2 * BLOCK], both) == 0


@given(st.lists(st.integers(0, 3), max_size=4 * BLOCK), st.lists(st.integers(0, 3), max_size=4 * BLOCK))
def test_blocks_are_equal_as_far_as_prompts_are(one: list[int], other: list[int]) -> None:
    common = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    known = KnownPrefixes()
    known.note(chain(one))
    assert known.known(chain(other)) == common // BLOCK


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_what_is_remembered_is_bounded_and_ends_go_before_beginnings(lengths: list[int]) -> None:
    known = KnownPrefixes(most=16)
    for number, length in enumerate(lengths):
        blocks = chain(list(range(length * BLOCK)), salt=number)
        known.note(blocks)
        assert known.known(blocks) == min(length, 16)
    assert len(known._blocks) <= 16
