import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import PlanError
from ferrule.model import part_of, split_heads, split_layers

COUNTS = st.integers(1, 96)
RANKS = st.integers(1, 16)


@given(COUNTS, RANKS)
def test_parts_laid_end_to_end_are_the_whole(total: int, parts: int) -> None:
    if total % parts:
        with pytest.raises(PlanError, match=f"size {total} does not divide by {parts}"):
            part_of(total, 0, parts)
        return
    covered = [index for part in range(parts) for index in range(*part_of(total, part, parts))]
    assert covered == list(range(total))


@given(COUNTS, st.integers(1, 24), RANKS)
def test_every_query_head_finds_its_key_value_head_on_its_rank(groups: int, key_value: int, parts: int) -> None:
    query = groups * key_value
    try:
        splits = [split_heads(query, key_value, part, parts) for part in range(parts)]
    except PlanError:
        assert query % parts or (key_value % parts and parts % key_value)
        return
    assert [head for split in splits for head in range(*split.query)] == list(range(query))
    assert {head for split in splits for head in range(*split.key_value)} == set(range(key_value))
    for split in splits:
        local_groups = split.query_heads // split.key_value_heads
        for place, head in enumerate(range(*split.query)):
            assert split.key_value[0] + place // local_groups == head // groups


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 9), st.integers(0, 60), st.integers(0, 60))
def test_layers_are_cut_as_well_as_trying_all_cuts_would(sizes: list[int], stages: int, first: int, last: int) -> None:
    if stages > len(sizes):
        with pytest.raises(PlanError, match="cannot fill"):
            split_layers(sizes, stages, first, last)
        return

    def largest(ranges: list[tuple[int, int]]) -> int:
        extra = [0] * len(ranges)
        extra[0] += first
        extra[-1] += last
        return max(sum(sizes[a:b]) + more for (a, b), more in zip(ranges, extra, strict=True))

    def all_cuts(start: int, left: int) -> list[list[tuple[int, int]]]:
        if left == 1:
            return [[(start, len(sizes))]]
        stops = range(start + 1, len(sizes) - left + 2)
        return [[(start, stop), *rest] for stop in stops for rest in all_cuts(stop, left - 1)]

    found = split_layers(sizes, stages, first, last)
    assert [index for a, b in found for index in range(a, b)] == list(range(len(sizes)))
    assert largest(found) == min(largest(cut) for cut in all_cuts(0, stages))
