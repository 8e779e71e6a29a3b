"""Which experts get copies on other devices, by the rows that were counted for them."""

from itertools import combinations, product

import pytest

from ferrule.plan.cost.copies import choose_copies, owners_in, slowest_rows

HALVES = ((0, 4), (4, 8))


def test_even_load_gets_no_copies() -> None:
    assert choose_copies([10] * 8, HALVES, (4, 4), (1, 1)) == owners_in(HALVES)


def test_no_rows_get_no_copies() -> None:
    assert choose_copies([0] * 8, HALVES, (4, 4), (1, 1)) == owners_in(HALVES)


def test_hot_expert_is_shared_with_the_other_device() -> None:
    rows = [80, 5, 5, 5, 5, 5, 5, 5]
    owners = choose_copies(rows, HALVES, (0, 1), (1, 1))
    assert owners == ((0, 1), *owners_in(HALVES)[1:])
    assert slowest_rows(rows, owners, (1, 1)) == 60


def test_copies_only_take_free_places() -> None:
    rows = [80, 80, 80, 80, 1, 1, 1, 1]
    for free in range(5):
        owners = choose_copies(rows, HALVES, (3, free), (1, 1), worth=0)
        assert sum(1 in of for of in owners[:4]) <= free
        assert all(0 in of for of in owners[:4])
    assert choose_copies(rows, HALVES, (3, 0), (1, 1)) == owners_in(HALVES)


def test_small_gain_is_not_worth_a_copy() -> None:
    rows = [14, 10, 10, 10, 9, 9, 9, 9]  # 44 falls to 41: less than a tenth
    assert choose_copies(rows, HALVES, (0, 1), (1, 1), worth=0) != owners_in(HALVES)
    assert choose_copies(rows, HALVES, (0, 1), (1, 1)) == owners_in(HALVES)


def test_slow_device_gets_no_copy_that_would_slow_it() -> None:
    rows = [40, 5, 5, 5, 5, 5, 5, 5]
    assert choose_copies(rows, HALVES, (0, 4), (4, 1)) == owners_in(HALVES)


def test_devices_that_are_equally_slow_are_all_relieved() -> None:
    rows, held = [60, 10, 60, 10, 1, 1], ((0, 2), (2, 4), (4, 6))
    owners = choose_copies(rows, held, (0, 0, 2), (1, 1, 1))
    assert slowest_rows(rows, owners, (1, 1, 1)) == 62
    owners = choose_copies(rows, held, (0, 0, 1), (1, 1, 1))
    assert owners == owners_in(held), "one copy alone would leave the other device as slow"


def test_other_number_of_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="7 experts"):
        choose_copies([1] * 7, HALVES, (1, 1), (1, 1))


def test_one_copy_is_the_best_there_is() -> None:
    held, free, speeds = ((0, 2), (2, 4), (4, 6)), (0, 1, 0), (1.0, 1.0, 1.0)
    for hot, warm in combinations(range(6), 2):
        rows = [3.0] * 6
        rows[hot], rows[warm] = 60, 20
        alone = owners_in(held)
        possible = [alone] + [
            (*alone[:e], tuple(sorted((*alone[e], device))), *alone[e + 1 :])
            for e, device in product(range(6), range(3))
            if free[device] and device not in alone[e]
        ]
        best = min(slowest_rows(rows, owners, speeds) for owners in possible)
        assert slowest_rows(rows, choose_copies(rows, held, free, speeds, worth=0), speeds) == best
