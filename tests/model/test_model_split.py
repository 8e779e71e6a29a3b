import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ferrule.errors import PlanError
from ferrule.model import divide, split_heads

SHARES = st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.7, 4.0]), min_size=1, max_size=9)


@given(st.integers(1, 4000), SHARES, st.sampled_from([1, 16, 32]))
def test_ranges_laid_end_to_end_are_the_whole_and_near_their_shares(total: int, shares: list[float], unit: int) -> None:
    units, ranks = -(-total // unit), len(shares)
    if units < ranks:
        with pytest.raises(PlanError, match=f"size {total} .*cannot be shared by {ranks} ranks; use --tp {units} or"):
            divide(total, shares, unit=unit)
        return
    parts = divide(total, shares, unit=unit)
    assert [place for start, stop in parts for place in range(start, stop)] == list(range(total))
    for (start, stop), share in zip(parts, shares, strict=True):
        assert start % unit == 0
        assert stop > start
        wanted = units * share / sum(shares)
        if min(shares) * units >= sum(shares):  # nobody gets a unit more than is due because all need one
            assert abs(-(-(stop - start) // unit) - wanted) < 1 + 1e-6


@given(st.integers(1, 96), st.integers(1, 24), SHARES)
def test_every_query_head_finds_its_key_value_head_on_its_rank(
    groups: int, key_value: int, shares: list[float]
) -> None:
    query = groups * key_value
    if query < len(shares):
        with pytest.raises(PlanError, match="cannot be shared by"):
            split_heads(query, key_value, shares)
        return
    splits = split_heads(query, key_value, shares)
    assert [head for split in splits for head in range(*split.query)] == list(range(query))
    assert {head for split in splits for head in range(*split.key_value)} == set(range(key_value))
    for split in splits:
        readers = split.query_heads // split.key_value_heads
        assert readers * split.key_value_heads == split.query_heads
        for place, head in enumerate(range(*split.query)):
            assert split.key_value[0] + place // readers == head // groups


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_equal_shares_are_cut_evenly_where_that_can_be(groups: int, key_value: int, ranks: int) -> None:
    query = groups * key_value
    assume(query % ranks == 0 and (key_value % ranks == 0 or ranks % key_value == 0))
    assert {split.query_heads for split in split_heads(query, key_value, [1 / ranks] * ranks)} == {query // ranks}


@pytest.mark.parametrize(
    ("query", "key_value", "shares", "expected"),
    [
        (32, 8, (1, 1, 1), (12, 12, 8)),
        (32, 8, (4, 2, 1), (20, 8, 4)),
        (32, 8, (1,) * 7, (8, 4, 4, 4, 4, 4, 4)),
        (8, 2, (1, 1, 1), (4, 2, 2)),
        (8, 2, (2, 1, 1), (4, 2, 2)),
        (5, 1, (1, 1, 1), (2, 2, 1)),
    ],
)
def test_heads_of_unequal_ranks(
    query: int, key_value: int, shares: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    found = split_heads(query, key_value, shares)
    assert tuple(split.query_heads for split in found) == expected
    exact = [split.query_heads / query for split in found]
    assert split_heads(query, key_value, exact) == found, "shares as they became are cut the same way"
