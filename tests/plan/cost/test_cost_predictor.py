"""Predictions for a plan, against arithmetic by hand and against what must hold whatever the numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.engine import EngineOptions
from ferrule.errors import PlanError
from ferrule.model import BUILT_IN, ModelSpec, Share, read_model
from ferrule.plan import (
    BUILT_IN_ENGINE,
    ClusterSpec,
    DeviceSpec,
    PairSpec,
    Plan,
    Question,
    RailSpec,
    Runtime,
    Stage,
    Workload,
    predict,
)
from ferrule.plan.cost import largest_context, memory_of
from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.experts import busiest_share
from ferrule.plan.cost.predictor import read_each_token

MODEL = read_model("llama-3.2-3b", weights="bfloat16")
EXPERTS = read_model("dbrx", weights="bfloat16")
PLAIN = Runtime("plain")


def machine(name: str, **figures: float) -> DeviceSpec:
    given = {"memory": 64 << 30, "memory_bandwidth": 200e9, "launch_seconds": 0.0} | figures
    return DeviceSpec(name, flops={"bf16": 50e12}, **given)  # type: ignore[arg-type]


def cluster(n: int, alpha: float = 1e-4, bandwidth: float = 1e9, **figures: float) -> ClusterSpec:
    names = [f"m{i}" for i in range(n)]
    pairs = tuple(PairSpec(ends, (RailSpec("eth0", alpha, bandwidth),)) for ends in combinations(names, 2))
    return ClusterSpec(tuple(machine(name, **figures) for name in names), pairs)


def ask(
    where: ClusterSpec, work: Workload | None = None, *, runtime: Runtime = PLAIN, model: ModelSpec = MODEL
) -> Question:
    return Question(model, where, work or Workload(), runtime=runtime)


def tensor(n: int, layers: int = MODEL.layers) -> Plan:
    return Plan((Stage(tuple(f"m{i}" for i in range(n)), 0, layers, (Share.even(n),) * n),))


def pipeline(n: int, layers: int = MODEL.layers) -> Plan:
    ends = [layers * i // n for i in range(n + 1)]
    return Plan(tuple(Stage((f"m{i}",), ends[i], ends[i + 1]) for i in range(n)))


def test_one_machine_reads_its_weights_once_per_token() -> None:
    prediction = predict(ask(cluster(1), Workload(prompt=1, depth=0)), pipeline(1))
    assert prediction.token_seconds == pytest.approx(MODEL.bytes / 200e9, rel=0.01)
    assert {term.kind for term in prediction.terms} == {"weights", "cache"}
    assert prediction.token_seconds == pytest.approx(sum(term.seconds for term in prediction.terms))


def test_operations_cost_beside_bytes() -> None:
    launched = predict(ask(cluster(1, launch_seconds=1e-5)), pipeline(1))
    free = predict(ask(cluster(1)), pipeline(1))
    operations = MODEL.layers * (PLAIN.attention_operations + PLAIN.dense_operations) + PLAIN.end_operations + 1
    assert launched.token_seconds - free.token_seconds == pytest.approx(operations * 1e-5)


def test_tensor_parallelism_pays_latency_for_every_collective_and_a_pipeline_for_every_hop() -> None:
    work = Workload(prompt=1, depth=0)
    slow, fast = cluster(2, alpha=1e-3), cluster(2, alpha=0.0)
    extra = [predict(ask(each, work), tensor(2)).token_seconds for each in (slow, fast)]
    collectives = 2 * MODEL.layers + len(MODEL.first_collectives) + len(MODEL.last_collectives)
    assert extra[0] - extra[1] == pytest.approx(collectives * 1e-3)
    extra = [predict(ask(each, work), pipeline(2)).token_seconds for each in (slow, fast)]
    assert extra[0] - extra[1] == pytest.approx(2e-3)


def test_a_stage_that_has_waited_resumes_where_operations_are_started_one_by_one() -> None:
    eager = replace(PLAIN, eager=True)
    warm, cold = cluster(4), cluster(4, resume_seconds=1e-3)
    for plan, waits in ((pipeline(1), 0), (tensor(4), 0), (pipeline(2), 2), (pipeline(4), 4)):
        for runtime, seconds in ((eager, waits * 1e-3), (PLAIN, 0.0)):
            before, after = (predict(ask(each, runtime=runtime), plan).token_seconds for each in (warm, cold))
            assert after - before == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize("plan", [tensor(2), pipeline(2)])
def test_on_a_slow_cable_the_word_of_the_next_step_takes_its_time(plan: Plan) -> None:
    telling = replace(PLAIN, announcement_bytes=4096)
    before, after = (predict(ask(cluster(2, bandwidth=1e6), runtime=each), plan) for each in (PLAIN, telling))
    more = 1e-4 + 4096e-6 if plan.strategy == "tensor" else 4096e-6 - 8e-6
    assert after.token_seconds - before.token_seconds == pytest.approx(more)


def test_a_pipeline_serves_as_many_streams_as_it_has_stages_at_once() -> None:
    one = predict(ask(cluster(4, alpha=0.0), Workload(concurrency=1)), pipeline(4))
    four = predict(ask(cluster(4, alpha=0.0), Workload(concurrency=4)), pipeline(4))
    # Not four times: the last stage has the output matrix as well, and sets the pace.
    assert 2.8 < four.throughput / one.throughput <= 4.0
    alone = predict(ask(cluster(1), Workload(concurrency=1)), pipeline(1))
    assert one.token_seconds == pytest.approx(alone.token_seconds, rel=0.02)


def test_the_terms_of_a_prompt_add_up_and_arithmetic_rules_them() -> None:
    prediction = predict(ask(cluster(2), Workload(prompt=2000)), tensor(2))
    assert prediction.ttft_seconds == pytest.approx(sum(term.seconds for term in prediction.prompt_terms))
    assert max(prediction.prompt_terms, key=lambda term: term.seconds).kind in ("compute", "collective")
    flops = sum(layer.flops(2000) for layer in MODEL.decoder)
    assert prediction.ttft_seconds > flops / 2 / 50e12


def test_memory_is_weights_and_the_cache_asked_for() -> None:
    work = Workload(context=8192, concurrency=3)
    prediction = predict(ask(cluster(1), work), pipeline(1))
    (use,) = prediction.memory
    assert (use.weights, use.cache) == (MODEL.bytes, 3 * MODEL.cache_bytes(8192))
    assert use.margin == (64 << 30) - use.total
    assert prediction.fits
    halves = predict(ask(cluster(2), work), tensor(2)).memory
    assert sum(use.weights for use in halves) == pytest.approx(MODEL.bytes, rel=0.01)


def test_the_largest_context_fills_the_memory_and_no_more() -> None:
    small = cluster(1, memory=MODEL.bytes + (2 << 30))
    context = predict(ask(small, Workload(context=1)), pipeline(1)).largest_context
    assert 1 < context < MODEL.max_context
    assert predict(ask(small, Workload(context=context)), pipeline(1)).fits
    assert not predict(ask(small, Workload(context=context + 1)), pipeline(1)).fits
    none = predict(ask(cluster(1, memory=1 << 30)), pipeline(1))
    assert (none.fits, none.largest_context) == (False, 0)


def test_what_does_not_fit_streams_from_disk_where_the_runtime_can() -> None:
    short = cluster(1, memory=MODEL.bytes, disk_read=2e9)
    stays = predict(ask(short), pipeline(1))
    streams = predict(ask(short, runtime=replace(PLAIN, streams=True)), pipeline(1))
    assert (stays.fits, streams.fits) == (False, True)
    (disk,) = [term for term in streams.terms if term.kind == "disk"]
    assert disk.seconds == pytest.approx(-stays.memory[0].margin / 2e9)


@pytest.mark.parametrize("disk", [2e9, 1e12])
def test_layers_are_read_while_others_are_computed_with(disk: float) -> None:
    """By the slower of disk and memory; what is read into has room of its own."""
    short = cluster(1, memory=MODEL.bytes, disk_read=disk)
    stays = predict(ask(short), pipeline(1))
    question = ask(short, runtime=replace(PLAIN, streams=True, reads_ahead=True))
    streams = predict(question, pipeline(1))
    missing = -stays.memory[0].margin
    (read,) = read_each_token(question, pipeline(1)).values()
    assert missing < read < missing + 3 * max(layer.bytes for layer in MODEL.decoder)
    assert streams.token_seconds == pytest.approx(max(stays.token_seconds, read / disk))
    assert streams.fits
    far = cluster(1, memory=MODEL.bytes // 100, disk_read=disk)
    assert not predict(question.on(far), pipeline(1)).fits, "not even what is needed at once"


def test_of_experts_those_that_tokens_choose_are_read() -> None:
    short = cluster(1, memory=round(EXPERTS.bytes * 0.6), disk_read=2e9)
    plan = pipeline(1, EXPERTS.layers)
    question = ask(short, runtime=replace(PLAIN, streams=True, reads_ahead=True), model=EXPERTS)
    one = predict(question, plan)
    missing = -predict(ask(short, model=EXPERTS), plan).memory[0].margin
    (read,) = read_each_token(question, plan).values()
    experts = EXPERTS.decoder[0].experts
    assert experts is not None
    assert read == pytest.approx(missing * experts.per_token / experts.count)
    (disk,) = [term.seconds for term in one.terms if term.kind == "disk"]
    assert disk == pytest.approx(read / 2e9), "they are read when they are chosen"
    several = predict(question.with_work(concurrency=8), plan)
    (more,) = [term.seconds for term in several.step_terms if term.kind == "disk"]
    assert disk < more < 8 * disk


def test_routes_lead_through_others_where_there_is_no_cable() -> None:
    full = cluster(3)
    chain = replace(full, pairs=tuple(pair for pair in full.pairs if set(pair.between) != {"m0", "m2"}))
    straight, around = (predict(ask(each), tensor(3)) for each in (full, chain))
    assert around.token_seconds > straight.token_seconds
    with pytest.raises(PlanError, match="no cables lead from m0 to m1"):
        predict(ask(replace(full, pairs=())), tensor(2))


def test_ranks_that_share_cores_take_turns() -> None:
    own, shared = cluster(4, alpha=0.0), replace(cluster(4, alpha=0.0), cores=2)
    work = Workload(prompt=1, depth=0)
    ours, theirs = (predict(ask(each, work), tensor(4)) for each in (own, shared))
    weights = [sum(term.seconds for term in each.terms if term.kind == "weights") for each in (ours, theirs)]
    assert weights[1] == pytest.approx(2 * weights[0])


def test_cores_that_compute_together_slow_each_other() -> None:
    shared = replace(cluster(4, alpha=0.0), cores=3, cores_together=0.5)
    assert [shared.turns(ranks) for ranks in (1, 2, 3, 6)] == pytest.approx([1, 1.5, 2, 4])
    assert cluster(4).turns(4) == 1
    in_turns = replace(shared, cores_in_turns=0.25)
    assert [in_turns.turns(ranks) for ranks in (1, 2, 3, 6)] == pytest.approx([1, 1.5, 2, 8])
    assert replace(shared, cores_in_turns=1.0).turns(6) == 4, "turns do not make cores quicker"
    awake = replace(shared, cores_awake=0.8)
    assert [awake.turns(ranks, others=True) for ranks in (1, 2, 3)] == pytest.approx([1.25, 1.5, 2])
    assert awake.turns(1) == replace(awake, cores=1).turns(1, others=True) == 1, "nobody else, or nowhere to wait"
    work = Workload(prompt=1, depth=0)
    alone, one_after_the_other, at_once, slowed = (
        sum(term.seconds for term in predict(ask(where, work), plan).terms if term.kind == "weights")
        for where, plan in ((shared, pipeline(1)), (shared, pipeline(3)), (shared, tensor(3)), (awake, pipeline(3)))
    )
    assert one_after_the_other == pytest.approx(alone)
    assert slowed == pytest.approx(alone * 1.25)
    assert at_once == pytest.approx(alone / 3 * 2, rel=0.01)


def test_messages_of_emulated_hosts_need_their_machines_cores() -> None:
    work = Workload(prompt=1, depth=0)
    own, shared = cluster(4, alpha=0.0), replace(cluster(4, alpha=0.0), cores=2)
    seconds = [
        sum(term.seconds for term in predict(ask(each, work), tensor(4)).terms if term.kind == "collective")
        for each in (own, shared)
    ]
    assert seconds[1] > 10 * seconds[0]


def test_the_busiest_device_has_more_experts_to_run_than_the_average() -> None:
    assert busiest_share([8, 8], 4, 1) == pytest.approx(2.646, abs=1e-3)  # 2 + what 3:1 and 4:0 draws add
    assert busiest_share([4, 4, 4, 4], 4, 1) == pytest.approx(1.969, abs=1e-3)
    assert busiest_share([16], 4, 1) == 4
    assert 5 < busiest_share([8, 8], 4, 3) <= 8
    two, four = (
        predict(
            ask(model=EXPERTS, where=cluster(n, memory=512 << 30)),
            Plan((Stage(tuple(f"m{i}" for i in range(n)), 0, EXPERTS.layers, (Share(experts=1 / n),) * n, True),)),
        )
        for n in (2, 4)
    )
    assert two.token_seconds > four.token_seconds > two.token_seconds / 2


def test_energy_and_money_where_they_are_known() -> None:
    assert predict(ask(cluster(1)), pipeline(1)).joules is None
    known = cluster(1, watts_idle=10.0, watts_busy=100.0, price=2000.0)
    prediction = predict(ask(known, Workload(kwh_price=0.3)), pipeline(1))
    assert prediction.joules == pytest.approx(100 * prediction.token_seconds)
    machines = 2000 / (3 * 365.25 * 86400) * prediction.token_seconds * 1e6
    power = 100 * prediction.token_seconds * 1e6 / 3.6e6 * 0.3
    assert prediction.dollars_per_million == pytest.approx(machines + power)


@settings(max_examples=40)
@given(
    st.sampled_from([tensor(2), pipeline(2), pipeline(1)]),
    st.floats(1.0, 3.0),
    st.sampled_from(["memory_bandwidth", "bandwidth", "alpha", "launch_seconds"]),
    st.integers(1, 8),
)
def test_better_machines_are_never_predicted_to_be_slower(
    plan: Plan, factor: float, what: str, concurrency: int
) -> None:
    base = {"memory_bandwidth": 100e9, "bandwidth": 1e9, "alpha": 1e-4, "launch_seconds": 1e-5}
    better = base | {what: base[what] * factor if "bandwidth" in what else base[what] / factor}
    work = Workload(prompt=600, concurrency=concurrency)
    before, after = (predict(ask(cluster(2, **figures), work), plan) for figures in (base, better))
    assert after.token_seconds <= before.token_seconds * (1 + 1e-9)
    assert after.step_seconds <= before.step_seconds * (1 + 1e-9)
    assert after.ttft_seconds <= before.ttft_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"memory": -1}, "memory must be more than 0"),
        ({"memory_bandwidth": 0.0}, "memory_bandwidth must be more than 0"),
        ({"launch_seconds": float("nan")}, "launch_seconds must be at least 0"),
        ({"price": -5.0}, "price must be at least 0"),
    ],
)
def test_nonsense_is_named(figures: dict[str, float], message: str) -> None:
    with pytest.raises(PlanError, match=f"device m0: {message}"):
        cluster(1, **figures)


def test_links_and_layouts_that_cannot_be() -> None:
    one, two = machine("a"), machine("b")
    with pytest.raises(PlanError, match="rail eth0: bandwidth must be more than 0"):
        RailSpec("eth0", 1e-6, 0.0)
    rail = RailSpec("eth0", 1e-6, 1e9)
    with pytest.raises(PlanError, match="two different devices"):
        PairSpec(("a", "a"), (rail,))
    with pytest.raises(PlanError, match="there is no such device"):
        ClusterSpec((one, two), (PairSpec(("a", "c"), (rail,)),))
    with pytest.raises(PlanError, match="is there twice"):
        ClusterSpec((one, two), (PairSpec(("a", "b"), (rail,)), PairSpec(("b", "a"), (rail,))))
    with pytest.raises(PlanError, match="two devices are called 'a'"):
        ClusterSpec((one, one))
    with pytest.raises(PlanError, match="in two stages"):
        Plan((Stage(("a",), 0, 2), Stage(("a",), 2, 4)))
    with pytest.raises(PlanError, match="holds nothing"):
        Stage(("a",), 2, 2)
    with pytest.raises(PlanError, match="context must be at least 1"):
        Workload(context=0)


@pytest.mark.parametrize(("memory", "concurrency"), [(20 << 30, 1), (24 << 30, 3), (200 << 30, 1)])
def test_the_largest_context_is_what_the_engine_then_serves(memory: int, concurrency: int) -> None:
    """Planner and engine have one function for it (`Runtime.cache_tokens`), of the same numbers."""
    question = ask(cluster(1, memory=memory), Workload(context=16, concurrency=concurrency), runtime=BUILT_IN_ENGINE)
    (use,) = memory_of(question, pipeline(1))
    free = use.room - use.weights - use.activations - use.runtime
    per_token = MODEL.cache_bytes(1, BUILT_IN)
    together = BUILT_IN_ENGINE.cache_tokens(free, per_token, EngineOptions("x").max_sequences)
    served = min(MODEL.max_context, together // concurrency)
    assert largest_context(question, pipeline(1)) == served > 0


@pytest.mark.parametrize(("stored_bytes", "element_bytes"), [(2.0, 2), (4.0, 4), (8.0, 4)])
def test_keys_and_values_are_kept_in_what_the_model_computes_in(stored_bytes: float, element_bytes: int) -> None:
    model = replace(MODEL, activation_bytes=stored_bytes)
    assert BUILT_IN_ENGINE.cache_of(model) == replace(BUILT_IN, element_bytes=element_bytes)
    assert PLAIN.cache_of(model) == PLAIN.cache
    question = Question(model, cluster(1, memory=64 << 30), Workload(context=4096), runtime=BUILT_IN_ENGINE)
    (use,) = memory_of(question, pipeline(1))
    assert use.cache == model.cache_bytes(4096, BUILT_IN) * element_bytes / 2


def test_caches_leave_room_to_grow_and_half_of_what_is_free() -> None:
    assert BUILT_IN_ENGINE.cache_tokens(2e9, 1000.0, 64) == 1_000_000 - 64 * 1024
    assert BUILT_IN_ENGINE.cache_tokens(2e6, 1000.0, 64) == 500
    assert BUILT_IN_ENGINE.cache_tokens(-1.0, 1000.0, 64) == 0
    assert PLAIN.cache_tokens(2e6, 1000.0, 64) == 2000


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.sampled_from([BUILT_IN_ENGINE, PLAIN]))
def test_what_must_be_free_for_a_cache_is_what_the_engine_fills_it_from(
    tokens: int, per_token: int, runtime: Runtime
) -> None:
    needed = tokens * per_token * runtime.cache_room(MODEL, tokens, 1).keys
    assert runtime.cache_tokens(needed * 1.001 + 2 * per_token, per_token, runtime.max_sequences) >= tokens
    assert runtime.cache_tokens(needed * 0.999 - per_token, per_token, runtime.max_sequences) < tokens


@pytest.mark.parametrize("memory", [8, 9, 12, 64])
def test_a_plan_fits_if_the_engine_will_serve_its_context(memory: int) -> None:
    for tokens in (512, 4096, 65536):
        question = ask(cluster(1, memory=memory << 30), Workload(context=tokens), runtime=BUILT_IN_ENGINE)
        found = predict(question, pipeline(1))
        assert found.fits == (found.largest_context >= tokens)


def test_logits_are_gathered_to_one_rank_only() -> None:
    exchange = Exchange(cluster(4, bandwidth=1e8), [f"m{i}" for i in range(4)])
    devices = [f"m{i}" for i in range(4)]
    assert [each.kind for each in MODEL.last_collectives] == ["gather"]
    part = 1e-4 + 1e6 / 4 / 1e8  # each part over a cable of its own, at once
    assert exchange.collective(devices, "gather", 1e6) == pytest.approx(part, rel=0.01)
    assert exchange.collective(devices, "gather", 1e6) <= exchange.collective(devices, "all_gather", 1e6)
