import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import PlanError
from ferrule.plan import (
    AttentionSpec,
    LayerSpec,
    LayerWeights,
    ModelSpec,
    Weights,
    make_plan,
    part_of,
    split_heads,
    split_layers,
)

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


def spec(**changes: object) -> ModelSpec:
    layer = LayerSpec(LayerWeights(dense=Weights(10, 10)), AttentionSpec("full", 8, 2, 4, 4))
    fields: dict[str, object] = {
        "name": "test",
        "architecture": "TestForCausalLM",
        "model_type": "test",
        "decoder": (layer,) * 4,
        "embedding": Weights(4, 4),
        "head": Weights(4, 4),
        "final": Weights(2, 2, whole=2),
        "tied": False,
        "hidden_size": 32,
        "query_heads": 8,
        "key_value_heads": 2,
        "vocab_size": 100,
        "max_context": 64,
    }
    return ModelSpec(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_hybrid_plan_numbers_ranks_stage_by_stage_and_drives_from_the_last() -> None:
    plan = make_plan(spec(), tensor=2, pipeline=2)
    assert plan.strategy == "hybrid"
    assert plan.driver == 2
    assert [(s.rank, s.stage, s.part, s.first_layer, s.last_layer) for s in plan.shards] == [
        (0, 0, 0, 0, 2),
        (1, 0, 1, 0, 2),
        (2, 1, 0, 2, 4),
        (3, 1, 1, 2, 4),
    ]
    assert [s.has_embedding for s in plan.shards] == [True, True, False, False]
    assert [s.weight_bytes for s in plan.shards] == [12, 12, 14, 14]


def test_tied_embeddings_are_counted_on_both_ends_only_where_the_ends_are_apart() -> None:
    tied = spec(tied=True, embedding=Weights(8, 8), head=Weights(8, 8))
    assert make_plan(tied).shards[0].weight_bytes == 50
    assert sum(s.weight_bytes for s in make_plan(tied, pipeline=2).shards) == 58


@pytest.mark.parametrize(
    ("changes", "split", "words"),
    [
        ({}, {"tensor": 3}, "the number of attention heads 8 does not divide by 3"),
        ({"query_heads": 12, "key_value_heads": 3}, {"tensor": 2}, "3 key/value heads cannot be shared evenly by 2"),
        ({}, {"pipeline": 5}, "4 layers cannot fill 5 pipeline stages"),
        ({"tensor_refusal": "no plan for it"}, {"tensor": 2}, "--tp 2: no plan for it"),
        ({"pipeline_refusal": "no plan for it"}, {"pipeline": 2}, "--pp 2: no plan for it"),
        ({}, {"tensor": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_split_is_refused_in_words(
    changes: dict[str, object], split: dict[str, int], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        make_plan(spec(**changes), **split)
