"""Plans whose devices share out keys and values by pages: what they hold, what they exchange, when they are listed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from ferrule.errors import PlanError
from ferrule.model import ModelSpec, Share, read_model
from ferrule.plan import ClusterSpec, DeviceSpec, PairSpec, Plan, Question, RailSpec, Stage, Workload, predict, search
from ferrule.plan.cost import memory_of
from ferrule.plan.cost.context import gathered_bytes, partial_bytes

MODEL = read_model("llama-3.1-8b", weights="bfloat16")
GIB = 1 << 30


def cluster(n: int, gib: int = 64, bandwidth: float = 1e9) -> ClusterSpec:
    names = [f"m{i}" for i in range(n)]
    rail = RailSpec("eth0", 1e-4, bandwidth)
    devices = tuple(DeviceSpec(name, gib * GIB, 200e9, {"bf16": 5e12}, launch_seconds=0.0) for name in names)
    return ClusterSpec(devices, tuple(PairSpec(ends, (rail,)) for ends in combinations(names, 2)))


def by_pages(n: int, model: ModelSpec = MODEL) -> Plan:
    return Plan((Stage(tuple(f"m{i}" for i in range(n)), 0, model.layers, (Share(),) * n, context=True),))


def single(model: ModelSpec = MODEL) -> Plan:
    return Plan((Stage(("m0",), 0, model.layers),))


def test_each_device_holds_all_weights_and_a_part_of_the_cache() -> None:
    question = Question(MODEL, cluster(4), Workload(context=65536))
    (alone,), parts = memory_of(question, single()), memory_of(question, by_pages(4))
    for use in parts:
        assert use.weights == alone.weights
        assert use.cache == pytest.approx(alone.cache / 4)


def test_a_prompt_is_shared_out_and_an_answers_token_is_not() -> None:
    work = Workload(context=8192, prompt=4096)
    quick = Question(MODEL, cluster(2, bandwidth=1e12), work)
    one, two = predict(quick, single()), predict(quick, by_pages(2))

    def seconds(found: object, kind: str) -> float:
        return sum(term.seconds for term in found if term.kind == kind)  # type: ignore[attr-defined]

    assert seconds(two.prompt_terms, "compute") == pytest.approx(seconds(one.prompt_terms, "compute") / 2, rel=0.02)
    assert seconds(two.terms, "weights") == seconds(one.terms, "weights")
    assert seconds(two.terms, "cache") == pytest.approx(seconds(one.terms, "cache") / 2)
    messages = MODEL.layers * quick.cluster.pairs[0].alpha
    assert seconds(two.terms, "collective") == pytest.approx(messages, rel=0.1), "one for each layer"


def test_what_travels_for_a_token_does_not_grow_with_the_context() -> None:
    attention = MODEL.decoder[0].attention
    assert attention is not None
    assert gathered_bytes(attention, 2) == (32 + 2 * 8) * 128 * 2
    assert partial_bytes(attention, 2) == 32 * (128 * 2 + 8)
    latent = read_model("deepseek-v3").decoder[0].attention
    assert latent is not None
    assert gathered_bytes(latent, 2) == (128 + 1) * 576 * 2, "the key is the value, too"
    assert partial_bytes(latent, 2) == 128 * (512 * 2 + 8)
    near, far = (
        predict(Question(MODEL, cluster(2), Workload(context=context, prompt=context)), by_pages(2))
        for context in (8192, 32768)
    )
    sums = [sum(each.seconds for each in one.prompt_terms if each.kind == "collective") for one in (near, far)]
    assert sums[1] == pytest.approx(4 * sums[0]), "by the tokens of the prompt alone"


def test_it_is_listed_where_one_machine_has_no_room_for_the_context() -> None:
    def strategies(context: int, **changes: object) -> list[str]:
        question = Question(MODEL, cluster(4, 24), Workload(context=context), **changes)  # type: ignore[arg-type]
        return [each.plan.strategy for each in search(question).candidates]

    assert "context" not in strategies(4096)
    assert strategies(60_000).count("context") == 2, "of 2 and of 4"
    assert strategies(4096, objective="context").count("context") == 2
    question = Question(MODEL, cluster(4, 24), Workload(context=60_000))
    found = {len(each.plan.devices): each for each in search(question).candidates if each.plan.strategy == "context"}
    assert found[4].prediction.fits
    assert found[4].prediction.largest_context > found[2].prediction.largest_context
    accelerated = tuple(replace(each, device="cuda") for each in question.cluster.devices)
    on_gpus = replace(question, cluster=replace(question.cluster, devices=accelerated))
    assert all(each.plan.strategy != "context" for each in search(on_gpus).candidates)


def test_stages_share_pages_alike_or_not_at_all() -> None:
    with pytest.raises(PlanError, match="holds its layers whole"):
        Stage(("a", "b"), 0, 4, (Share.even(2),) * 2, context=True)
    with pytest.raises(PlanError, match="on every stage, or on none"):
        Plan((Stage(("a", "b"), 0, 4, (Share(),) * 2, context=True), Stage(("c",), 4, 8)))
    plan = Plan(
        (
            Stage(("a", "b"), 0, 4, (Share(),) * 2, context=True),
            Stage(("c", "d"), 4, 8, (Share(),) * 2, context=True),
        )
    )
    assert [(each.context_part, each.parts) for each in plan.shards] == [(0, 1), (1, 1), (0, 1), (1, 1)]
    assert [plan.source(rank) for rank in (2, 3)] == [0, 1]
    assert (plan.tensor, plan.context, plan.driver, plan.strategy) == (1, 2, 2, "hybrid")
