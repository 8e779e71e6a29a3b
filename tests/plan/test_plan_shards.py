"""The one plan: made by hand, chosen by the planner, put on other devices."""

import pytest

from ferrule.errors import PlanError
from ferrule.model import AttentionSpec, ExpertsSpec, LayerSpec, LayerWeights, ModelSpec, Share, Weights
from ferrule.plan import Plan, Stage, make_plan
from ferrule.plan.cost import weight_bytes


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
    assert list(weight_bytes(spec(), plan)) == [12, 12, 14, 14]


def test_tied_embeddings_are_counted_on_both_ends_only_where_the_ends_are_apart() -> None:
    tied = spec(tied=True, embedding=Weights(8, 8), head=Weights(8, 8))
    assert weight_bytes(tied, make_plan(tied)) == (50,)
    assert sum(weight_bytes(tied, make_plan(tied, pipeline=2))) == 58


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({}, {"tensor": 9}, "--tp 9: 8 attention heads cannot be shared by 9 ranks; use 8 or less"),
        ({}, {"tensor": 2, "experts": True}, "--tp 2 --expert-parallel: TestForCausalLM has no experts"),
        ({}, {"tensor": 1, "experts": True}, "of which there must be 2 or more"),
        ({}, {"pipeline": 5}, "4 layers cannot fill 5 pipeline stages"),
        ({"tensor_refusal": "no plan for it"}, {"tensor": 2}, "--tp 2: no plan for it"),
        ({"pipeline_refusal": "no plan for it"}, {"pipeline": 2}, "--pp 2: no plan for it"),
        ({}, {"tensor": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_split_is_refused_in_words(
    changes: dict[str, object], split: dict[str, int], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(spec(**changes), **split)


def test_a_plan_tells_each_rank_its_part_and_why() -> None:
    half = Share.even(2)
    chosen = Plan((Stage(("a", "b"), 0, 20, (half, half)), Stage(("c", "d"), 20, 32, (half, half))))
    plan = chosen.because("Because.")
    assert (plan.tensor, plan.pipeline, plan.layers, plan.world_size, plan.driver) == (2, 2, 32, 4, 2)
    assert plan.reason == "2 pipeline stages chosen by the planner, every layer cut in 2 equal parts. Because."
    assert [(shard.rank, shard.first_layer, shard.last_layer, shard.part) for shard in plan.shards] == [
        (0, 0, 20, 0), (1, 0, 20, 1), (2, 20, 32, 0), (3, 20, 32, 1),
    ]  # fmt: skip
    assert plan == chosen, "the reason does not make another plan"


def test_a_plan_moves_to_other_devices_by_rank() -> None:
    plan = make_plan(spec(), tensor=2, pipeline=2)
    assert plan.devices == ("rank-0", "rank-1", "rank-2", "rank-3")
    moved = plan.on(["a", "b", "c", "d"])
    assert [stage.devices for stage in moved.stages] == [("a", "b"), ("c", "d")]
    assert moved.shards == plan.shards
    with pytest.raises(PlanError, match="4 ranks cannot be put on 3 devices"):
        plan.on(["a", "b", "c"])


def test_hosts_that_divide_nothing_have_nearly_equal_shares_and_stages_of_any_width_send_to_each_other() -> None:
    plan = make_plan(spec(), tensor=3)
    assert [share.query for share in plan.stages[0].shares] == [0.5, 0.25, 0.25]
    assert {round(share.width, 9) for share in plan.stages[0].shares} == {round(1 / 3, 9)}
    assert plan.reason == "every layer cut in 3 unequal parts"
    quick = make_plan(spec(), tensor=3, speeds=(4.0, 2.0, 2.0)).stages[0].shares
    assert [(share.query, share.width) for share in quick] == [(0.5, 0.5), (0.25, 0.25), (0.25, 0.25)]
    third, half = Share.even(3), Share.even(2)
    mixed = Plan(
        (Stage(("a",), 0, 1), Stage(("b", "c", "d"), 1, 2, (third,) * 3), Stage(("e", "f"), 2, 4, (half,) * 2))
    )
    assert [mixed.receivers(rank) for rank in range(4)] == [(1, 2, 3), (4,), (5,), ()]
    assert [mixed.source(rank) for rank in range(1, 6)] == [0, 0, 0, 1, 2]
    assert mixed.because("").reason == "3 pipeline stages chosen by the planner, of 1, 3 and 2 ranks"
    assert make_plan(mixture(), tensor=2, experts=True).reason == "every layer cut in 2 equal parts, experts whole"


def mixture() -> ModelSpec:
    layer = LayerSpec(
        LayerWeights(routed=Weights(10, 10)), AttentionSpec("full", 8, 2, 4, 4), experts=ExpertsSpec(4, 2, 8)
    )
    return spec(decoder=(layer,) * 4)
