import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import PlanError
from ferrule.model import part_of, split_heads

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
