"""The search over predictions: as good as trying everything, the same whatever the order, never worse for more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferrule.errors import PlanError
from ferrule.model import ModelSpec, read_model
from ferrule.model.layer import WHOLE, ExpertsSpec, Share
from ferrule.plan import (
    ClusterSpec,
    DeviceSpec,
    Objective,
    PairSpec,
    Plan,
    Question,
    RailSpec,
    Workload,
    predict,
    search,
)
from ferrule.plan.search.heuristic.many import many_hosts
from ferrule.plan.search.stages.costs import Cutting, Measure, StageCosts
from ferrule.plan.search.stages.cuttings import cuttings_of
from ferrule.plan.search.stages.shares import whole_shares


def few_layers(name: str, layers: int) -> ModelSpec:
    model = read_model(name, weights="bfloat16")
    return replace(model, decoder=model.decoder[:layers], max_context=8192)


DENSE = few_layers("llama-3.2-3b", 5)
EXPERTS = few_layers("glm-4.5-air", 4)  # the first layer is dense
_HYBRID = few_layers("granite-4.0-h-small", 7)
RECURRENT = replace(_HYBRID, decoder=_HYBRID.decoder[3:])  # the third is attention
GB = 10**9


def machine(name: str, memory: float, bandwidth: float) -> DeviceSpec:
    return DeviceSpec(
        name, int(memory * GB), bandwidth * 1e9, {"bf16": 2e13}, "some", watts_idle=10.0, watts_busy=100.0
    )


def unequal(count: int, seed: int, memory: float) -> ClusterSpec:
    """All different, and every message is best sent directly."""
    dice = random.Random(seed)
    devices = tuple(machine(f"m{i}", memory * dice.uniform(0.7, 1.3), dice.uniform(100, 400)) for i in range(count))
    pairs = tuple(
        PairSpec((a.name, b.name), (RailSpec("eth", dice.uniform(20e-6, 40e-6), dice.uniform(3e9, 5e9)),))
        for a, b in itertools.combinations(devices, 2)
    )
    return ClusterSpec(devices, pairs)


def everything(model: ModelSpec, cluster: ClusterSpec, work: Workload) -> Iterator[Plan]:
    """Every plan of the space that is searched."""
    costs = StageCosts(Question(model, cluster, work))
    names = sorted(cluster.by_name)
    groups = [
        (set(some), cuttings_of(costs, some))
        for width in range(1, len(names) + 1)
        for some in itertools.combinations(names, width)
    ]
    for stages in range(1, len(names) + 1):
        for order in itertools.permutations(groups, stages):
            if len(set().union(*(some for some, _ in order))) < sum(len(some) for some, _ in order):
                continue
            for cuttings in itertools.product(*(ways for _, ways in order)):
                for ends in itertools.combinations(range(1, model.layers), stages - 1):
                    spans = zip(cuttings, (0, *ends), (*ends, model.layers), strict=True)
                    yield Plan(tuple(cutting.stage(a, b) for cutting, a, b in spans))


@pytest.mark.parametrize(
    ("model", "count", "memory", "concurrency"),
    [
        (replace(DENSE, decoder=DENSE.decoder[:4]), 4, 0.9, 1),
        (DENSE, 3, 1.2, 6),
        (DENSE, 3, 1.0, 2),
        (EXPERTS, 3, 9.0, 1),
        (RECURRENT, 3, 4.0, 12),
    ],
)
def test_as_good_as_trying_everything(model: ModelSpec, count: int, memory: float, concurrency: int) -> None:
    cluster = unequal(count, count, memory)
    work = Workload(context=512, prompt=64, concurrency=concurrency)
    predictions = [predict(Question(model, cluster, work), plan) for plan in everything(model, cluster, work)]
    fitting = [prediction for prediction in predictions if prediction.fits]
    assert 0 < len(fitting) < len(predictions), "memory should matter"
    quickest = search(Question(model, cluster, work)).best
    assert quickest is not None
    assert quickest.prediction.token_seconds == pytest.approx(min(one.token_seconds for one in fitting))
    most = search(Question(model, cluster, work, "throughput")).best
    assert most is not None
    assert most.prediction.step_seconds <= min(one.step_seconds for one in fitting) * 1.005
    first = search(Question(model, cluster, work, "ttft")).best
    assert first is not None
    assert first.prediction.ttft_seconds == pytest.approx(min(one.ttft_seconds for one in fitting))


def test_experts_are_given_out_by_their_own_speed_also_where_there_are_as_many_as_heads() -> None:
    pieces = EXPERTS.key_value_heads
    layers = tuple(replace(layer, experts=ExpertsSpec(pieces, 2, 1408)) for layer in EXPERTS.decoder if layer.experts)
    cable = PairSpec(("quick", "slow"), (RailSpec("eth", 3e-5, 4e9),))
    cluster = ClusterSpec((machine("quick", 90, 30), machine("slow", 90, 10)), (cable,))
    costs = StageCosts(Question(replace(EXPERTS, decoder=layers), cluster, Workload(context=512)))

    def by_speed(least: Share) -> tuple[int, ...] | None:
        seconds = [
            [
                float(costs.table(Cutting((name,), (share,)), Measure("token")).by_layer.sum())
                for share in (least, WHOLE)
            ]
            for name in cluster.by_name
        ]
        each = [(whole - one) / (pieces - 1) for one, whole in seconds]
        return whole_shares(pieces, each, before=[one - more for (one, _), more in zip(seconds, each, strict=True)])

    experts, heads = by_speed(Share(experts=1 / pieces)), by_speed(Share.even(pieces))
    assert experts != heads
    cuttings = cuttings_of(costs, list(cluster.by_name))
    given = [tuple(round(share.experts * pieces) for share in each.shares) for each in cuttings if each.experts]
    assert experts in given
    assert heads not in given


@pytest.mark.parametrize("model", [EXPERTS, RECURRENT])
def test_what_the_tables_say_is_what_is_predicted(model: ModelSpec) -> None:
    cluster = unequal(3, 5, 9.0)
    work = Workload(context=512, prompt=1200, concurrency=4)
    for measure in (Measure("token"), Measure("prompt")):
        costs = StageCosts(Question(model, cluster, work))
        cuttings = [cuttings_of(costs, [name])[0] for name in ("m0", "m1", "m2")]
        plan = Plan(
            tuple(cutting.stage(at, end) for cutting, at, end in zip(cuttings, (0, 1, 3), (1, 3, 4), strict=True))
        )
        tables = [costs.table(cutting, measure) for cutting in cuttings]
        stages = sum(table.runs[a, b] for table, a, b in zip(tables, (0, 1, 3), (1, 3, 4), strict=True))
        hops = costs.hop(["m0"], ["m1"], measure) + costs.hop(["m1"], ["m2"], measure)
        hops += costs.hop(["m2"], ["m0"], measure, last=True)
        prediction = predict(Question(model, cluster, work), plan)
        told = prediction.token_seconds if measure.kind == "token" else prediction.ttft_seconds
        assert stages + hops == pytest.approx(told)
    for cutting, use in zip(cuttings, prediction.memory, strict=True):
        (held,) = costs.memory(cutting)
        stage = next(stage for stage in plan.stages if stage.devices == cutting.devices)
        assert use.needed <= held.runs[stage.first_layer, stage.last_layer] <= use.needed * 1.02


sizes = st.floats(0.5, 3.0)


@given(st.lists(st.tuples(sizes, st.floats(50, 500)), min_size=2, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_order_of_hosts_does_not_matter(figures: list[tuple[float, float]], dice: random.Random) -> None:
    devices = [machine(f"m{i}", *each) for i, each in enumerate(figures)]
    pairs = [PairSpec((a.name, b.name), (RailSpec("eth", 3e-5, 2e9),)) for a, b in itertools.combinations(devices, 2)]
    work = Workload(context=256, prompt=32, concurrency=3)
    result = search(Question(DENSE, ClusterSpec(tuple(devices), tuple(pairs)), work, "throughput"))
    for candidate in result.candidates:
        used = {use.device: use.total for use in candidate.prediction.memory}
        if candidate.prediction.fits:
            assert all(total <= device.memory for device in devices for total in [used.get(device.name, 0)])
    dice.shuffle(devices)
    dice.shuffle(pairs)
    turned = tuple(PairSpec((pair.between[1], pair.between[0]), pair.rails) for pair in pairs)
    assert search(Question(DENSE, ClusterSpec(tuple(devices), turned), work, "throughput")) == result


@given(
    st.lists(st.tuples(sizes, st.floats(50, 500)), min_size=2, max_size=3),
    st.floats(5e-6, 1e-3),
    st.sampled_from(["memory", "bandwidth", "latency"]),
    st.floats(1.01, 3.0),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_more_is_never_worse(figures: list[tuple[float, float]], alpha: float, what: str, factor: float) -> None:
    def best(better: bool) -> float:
        more = {name: factor if better and name == what else 1.0 for name in ("memory", "bandwidth", "latency")}
        (memory, bandwidth), *others = figures
        first = machine("m0", memory * more["memory"], bandwidth * more["bandwidth"])
        devices = (first, *(machine(f"m{i + 1}", *each) for i, each in enumerate(others)))
        rail = RailSpec("eth", alpha / more["latency"], 2e9)
        pairs = tuple(PairSpec((a.name, b.name), (rail,)) for a, b in itertools.combinations(devices, 2))
        plan = search(
            Question(DENSE, ClusterSpec(devices, pairs), Workload(context=256, prompt=32), runnable_only=True)
        ).best
        return plan.prediction.token_seconds if plan else float("inf")

    assert best(True) <= best(False) * (1 + 1e-9)


def test_the_best_single_host_is_always_shown_and_says_whether_it_fits() -> None:
    cluster = unequal(3, 1, 1.0)
    result = search(Question(DENSE, cluster, Workload(context=256)), top=1)
    assert result.single in result.candidates
    assert result.single.plan.strategy == "single"
    assert not result.single.prediction.fits
    assert result.best is None or result.best.prediction.fits


def test_a_plan_for_emulated_hosts_is_exact_where_each_has_a_core_of_its_own() -> None:
    """The search does not count what they take from each other on cores that they share."""
    hosts = unequal(3, 1, 1.0)
    own, shared, awake = (replace(hosts, cores=3), replace(hosts, cores=2), replace(hosts, cores=3, cores_awake=0.9))
    work = Workload(context=256)
    assert [search(Question(DENSE, cluster, work)).exact for cluster in (hosts, own, shared, awake)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_chain_of_hosts_is_followed_and_no_layout_skips_the_host_between() -> None:
    devices = tuple(machine(name, 1.0, 200) for name in "abc")
    rail = RailSpec("tb", 1e-5, 3e9)
    chain = ClusterSpec(devices, (PairSpec(("a", "b"), (rail,)), PairSpec(("b", "c"), (rail,))))
    result = search(Question(DENSE, chain, Workload(context=256)))
    assert result.exact
    assert result.best is not None
    used = [set(candidate.plan.devices) for candidate in result.candidates]
    assert {"a", "c"} not in used


@pytest.mark.parametrize("objective", ["latency", "context"])
def test_a_ring_of_six_is_searched_by_a_bound(objective: Objective) -> None:
    """And is no worse than four of its hosts, which are a chain."""
    devices = unequal(6, 3, 0.8).devices
    rail = RailSpec("tb", 1e-5, 3e9)
    ring = ClusterSpec(
        devices,
        tuple(PairSpec((a.name, b.name), (rail,)) for a, b in zip(devices, devices[1:] + devices[:1], strict=True)),
    )
    work = Workload(context=256, prompt=32, concurrency=3)
    whole = search(Question(DENSE, ring, work, objective))
    part = search(Question(DENSE, ring.among([device.name for device in devices[:4]]), work, objective))
    assert whole.exact == (objective == "latency")
    assert whole.best is not None
    assert part.best is not None
    if objective == "context":
        assert whole.best.prediction.largest_context >= part.best.prediction.largest_context
    else:
        assert whole.best.prediction.token_seconds <= part.best.prediction.token_seconds


def test_runnable_only_leaves_out_what_the_engine_cannot_run() -> None:
    cluster = unequal(3, 2, 3.0)
    refused = replace(DENSE, tensor_refusal="it has no plan")
    every = search(Question(refused, cluster, Workload(context=256)), top=99)
    assert any(candidate.plan.obstacle for candidate in every.candidates)
    some = search(Question(refused, cluster, Workload(context=256), runnable_only=True), top=99)
    assert some.candidates
    assert not any(candidate.plan.obstacle for candidate in some.candidates)


def test_the_largest_context_beats_that_of_every_layout_for_speed() -> None:
    cluster = unequal(3, 4, 1.2)
    work = Workload(context=64, prompt=32, concurrency=40)
    longest = search(Question(DENSE, cluster, work, "context")).best
    assert longest is not None
    tried = max(
        predict(Question(DENSE, cluster, work), plan).largest_context for plan in everything(DENSE, cluster, work)
    )
    assert tried * 0.98 <= longest.prediction.largest_context <= tried


def test_energy_needs_watts() -> None:
    cluster = ClusterSpec((replace(machine("m0", 9.0, 100), watts_idle=None),))
    with pytest.raises(PlanError, match=r"m0.*watts_idle"):
        search(Question(DENSE, cluster, objective="energy"))


def test_unknown_objective() -> None:
    with pytest.raises(PlanError, match="objective must be one of latency"):
        search(Question(DENSE, unequal(1, 1, 9.0), objective="beauty"))  # type: ignore[arg-type]


def test_shares_make_the_slowest_as_quick_as_can_be() -> None:
    dice = random.Random(3)
    for _ in range(50):
        count, total = dice.randint(2, 4), 8
        each = [dice.uniform(1, 5) for _ in range(count)]
        before = [dice.uniform(0, 5) for _ in range(count)]
        most = [dice.randint(1, 6) for _ in range(count)]
        ways = [
            way
            for way in itertools.product(range(1, total + 1), repeat=count)
            if sum(way) == total and all(a <= b for a, b in zip(way, most, strict=True))
        ]

        def slowest(way: tuple[int, ...]) -> float:
            return max(b + e * n for b, e, n in zip(before, each, way, strict=True))  # noqa: B023 - used at once

        found = whole_shares(total, each, before=before, most=most)
        assert (found is None) == (not ways)
        if found is not None:
            assert slowest(found) == min(map(slowest, ways))


def test_shares_are_given_piece_by_piece() -> None:
    """Each to the device that would be done with it first; so many pieces are not given one by one."""
    dice = random.Random(4)
    for _ in range(200):
        count, total = dice.randint(1, 8), dice.choice([8, 64, 256])
        each = [dice.choice([1.0, 2.0, dice.uniform(0.1, 10)]) for _ in range(count)]
        before = [dice.choice([0.0, dice.uniform(-1, 60)]) for _ in range(count)]
        most = [dice.choice([total, dice.randint(-(-total // count), total)]) for _ in range(count)]
        given = [1] * count
        while sum(given) < total:
            done = [(before[i] + (given[i] + 1) * each[i], i) for i in range(count) if given[i] < most[i]]
            given[min(done)[1]] += 1
        assert whole_shares(total, each, before=before, most=most) == tuple(given)


def test_many_hosts_find_what_few_find() -> None:
    """Nine hosts of which only three have any room."""
    three = unequal(3, 7, 1.0)
    small = tuple(machine(f"s{i}", 0.2, 50) for i in range(6))
    devices = (*three.devices, *small)
    rail = RailSpec("eth", 9e-5, 1e9)
    known = {frozenset(pair.between) for pair in three.pairs}
    pairs = tuple(
        PairSpec((a.name, b.name), (rail,))
        for a, b in itertools.combinations(devices, 2)
        if frozenset((a.name, b.name)) not in known
    )
    work = Workload(context=256, prompt=32)
    many = search(Question(DENSE, ClusterSpec(devices, (*three.pairs, *pairs)), work, runnable_only=True))
    few = search(Question(DENSE, three, work, runnable_only=True))
    assert many.best is not None
    assert few.best is not None
    assert not many.exact
    assert many.notes
    assert many.best.prediction.token_seconds <= few.best.prediction.token_seconds * (1 + 1e-9)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_the_heuristic_is_near_the_best(objective: Objective) -> None:
    """A model with experts over five unlike hosts, of which pools hold three."""
    cluster, work = unequal(5, 8, 6.0), Workload(context=512, prompt=64, concurrency=4)
    exact = search(Question(EXPERTS, cluster, work, objective))
    assert exact.exact
    assert exact.best is not None
    plans = many_hosts(Question(EXPERTS, cluster, work, objective), pool=3).found
    found = [told for plan in plans if (told := predict(Question(EXPERTS, cluster, work), plan)).fits]
    best = exact.best.prediction
    if objective == "latency":
        assert min(told.token_seconds for told in found) <= best.token_seconds * 1.05
    else:
        assert min(told.step_seconds for told in found) <= best.step_seconds * 1.08
