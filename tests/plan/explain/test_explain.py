"""Why a plan is as fast as it is, what would help, what is missing where nothing fits, and curves: by arithmetic."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from ferrule.bench.plan_curves import LATENCIES, over_context, over_hosts, over_latency
from ferrule.errors import PlanError
from ferrule.model import Share, read_model
from ferrule.plan import (
    RUNTIMES,
    Candidate,
    ClusterSpec,
    DeviceSpec,
    Objective,
    PairSpec,
    Plan,
    Question,
    RailSpec,
    Runtime,
    Stage,
    Workload,
    predicted,
)
from ferrule.plan.cluster.changes import NEW_RAIL, one_more
from ferrule.plan.explain import bottleneck, cautions, shortage, tight, verdict, what_ifs
from ferrule.plan.explain.what_if import RDMA_SECONDS, another_cable, by_rdma

MODEL = read_model("llama-3.2-3b", weights="bfloat16")
SMALLER = read_model("llama-3.2-3b", weights="int4")
PLAIN = Runtime("plain")
QUICK = {"memory": 64 << 30, "memory_bandwidth": 200e9, "launch_seconds": 0.0}


def cluster(n: int, alpha: float = 1e-4, bandwidth: float = 1e9, **figures: float) -> ClusterSpec:
    names = [f"box-{i}" for i in range(1, n + 1)]
    pairs = tuple(PairSpec(ends, (RailSpec("eth0", alpha, bandwidth),)) for ends in combinations(names, 2))
    devices = (DeviceSpec(name, flops={"bf16": 50e12}, **(QUICK | figures)) for name in names)  # type: ignore[arg-type]
    return ClusterSpec(tuple(devices), pairs)


def ask(where: ClusterSpec, objective: Objective = "latency", **work: int) -> Question:
    return Question(MODEL, where, Workload(**work), objective, PLAIN)  # type: ignore[arg-type]


def tensor(n: int) -> Plan:
    names = tuple(f"box-{i}" for i in range(1, n + 1))
    return Plan((Stage(names, 0, MODEL.layers, (Share.even(n),) * n),))


def pipeline() -> Plan:
    return Plan((Stage(("box-1",), 0, 14), Stage(("box-2",), 14, 28)))


def single(question: Question) -> Candidate:
    return predicted(question, Plan((Stage(("box-1",), 0, MODEL.layers),)))


@pytest.mark.parametrize(
    ("where", "plan", "work", "kind", "named"),
    [
        (cluster(1), tensor(1), {}, "weights", "reading weights from memory on box-1: 99 % of token time"),
        (cluster(1, launch_seconds=1e-3), tensor(1), {}, "launch", "starting operations on box-1"),
        (
            cluster(1),
            tensor(1),
            {"prompt": 100_000, "context": 100_001},
            "cache",
            "keys and values from memory on box-1",
        ),
        (cluster(2, alpha=1e-3), tensor(2), {}, "latency", "all-reduce latency on eth0 (box-1-box-2): "),
        (cluster(2, alpha=1e-7, bandwidth=1e6), tensor(2), {}, "bandwidth", "all-reduce bandwidth on eth0"),
        (cluster(2, alpha=0.5), pipeline(), {}, "hop", "messages between stages over eth0 (box-1-box-2)"),
    ],
)
def test_the_largest_term_is_the_bottleneck(
    where: ClusterSpec, plan: Plan, work: dict[str, int], kind: str, named: str
) -> None:
    question = ask(where, **work)
    candidate = predicted(question, plan)
    found = bottleneck(question, candidate)
    assert found.kind == kind
    assert named in found.text
    assert found.part == pytest.approx(found.seconds / candidate.prediction.token_seconds)
    assert found.part > 0.4


def test_the_first_token_has_a_bottleneck_of_its_own() -> None:
    question = ask(cluster(1), "ttft", prompt=2000)
    found = bottleneck(question, predicted(question, tensor(1)))
    assert (found.kind, found.of) == ("compute", "prompt")
    assert "arithmetic on box-1" in found.text
    assert "of the prompt's time" in found.text


def test_many_sequences_have_a_bottleneck_of_their_own() -> None:
    """A step that waits for its slowest stage is told by that stage; the terms add up."""
    question = ask(cluster(2), "throughput", concurrency=8)
    uneven = Plan((Stage(("box-1",), 0, 24), Stage(("box-2",), 24, 28)))
    for plan in (uneven, pipeline(), tensor(2)):
        prediction = predicted(question, plan).prediction
        assert sum(term.seconds for term in prediction.step_terms) == pytest.approx(prediction.step_seconds)
    found = bottleneck(question, predicted(question, uneven))
    assert (found.of, found.where) == ("step", "box-1")
    assert found.text.endswith("of the time of a step of all sequences")
    assert bottleneck(replace(question, work=Workload()), predicted(question, uneven)).of == "token"


def test_what_does_not_fit_is_read_from_disk() -> None:
    short = cluster(1, memory=4 << 30, disk_read=3e9)
    question = replace(ask(short), runtime=RUNTIMES["llama.cpp-rpc"])
    assert bottleneck(question, predicted(question, tensor(1))).kind == "disk"


def test_rdma_helps_what_waits_for_messages() -> None:
    question = ask(cluster(2, alpha=1e-3 / 2))
    changes = what_ifs(question, predicted(question, tensor(2)))
    first = changes[0]
    assert "RDMA instead of TCP (8 µs a message, now 500)" in first.text
    assert "latency" in first.helps
    quick = predicted(question.on(cluster(2, alpha=RDMA_SECONDS)), tensor(2))
    assert first.after == pytest.approx(quick.prediction.tokens_per_s)
    assert first.times == pytest.approx(first.after / first.before)
    # a second cable takes no latency away, so it is not told
    assert not any("cable" in change.text for change in changes)


def test_a_second_cable_helps_what_waits_for_bytes() -> None:
    question = ask(cluster(2, bandwidth=2e7), "ttft")
    before = predicted(question, tensor(2)).prediction.ttft_seconds
    first = what_ifs(question, predicted(question, tensor(2)))[0]
    assert first.text == "with a second cable on box-1-box-2"
    assert (first.before, first.times) == (before, pytest.approx(before / first.after))
    assert 1.5 < first.times < 2


def test_lighter_weights_and_another_host_help_what_reads_memory() -> None:
    question = replace(ask(cluster(2, alpha=1e-6, bandwidth=1e10)), lighter=(("int4", SMALLER),))
    words = [change.text for change in what_ifs(question, predicted(question, tensor(2)))]
    assert words == ["with weights as int4", "with one more host like box-1"]


def test_what_would_make_a_split_pay_is_told_with_the_single_machine() -> None:
    question = ask(cluster(2, alpha=9e-4))
    one, two = single(question), predicted(question, tensor(2))
    assert verdict(question, one, one, two).startswith("Use one machine: box-1 alone is ")
    changes = what_ifs(question, one, two)
    assert changes[0].before == one.prediction.tokens_per_s
    assert "RDMA" in changes[0].text


def test_the_verdict_says_whether_to_split() -> None:
    near = ask(cluster(2, alpha=1e-6, bandwidth=1e10))
    one, two = single(near), predicted(near, tensor(2))
    assert verdict(near, two, one, two) == "1.99 times as fast as box-1 alone."
    assert verdict(near, one, one, None) == ""
    small = ask(cluster(2, memory=4 << 30))
    lacking = single(small).prediction.memory[0].margin / -(2**30)
    assert verdict(small, predicted(small, tensor(2)), single(small), None) == (
        f"One machine is not enough: box-1 alone lacks {lacking:.1f} GiB."
    )
    context = ask(cluster(2), "context")
    assert "One machine is enough" in verdict(context, predicted(context, tensor(2)), single(context), None)


def test_changes_to_a_cluster() -> None:
    three = cluster(3)
    words, changed = another_cable(three, tensor(3)) or ("", three)
    assert words == "with a second cable on each of 3 pairs"
    assert all(pair.bandwidth == 2e9 for pair in changed.pairs)
    assert another_cable(three, tensor(1)) is None
    assert by_rdma(cluster(2, alpha=2e-3), tensor(2)) is None  # no cable is that slow
    assert by_rdma(cluster(2, alpha=RDMA_SECONDS), tensor(2)) is None
    more = one_more(three, "box-2")
    assert [device.name for device in more.devices] == ["box-1", "box-2", "box-3", "box-4"]
    assert len(more.pairs) == 6
    assert one_more(cluster(1), "box-1").pairs == (PairSpec(("box-1", "box-2"), (NEW_RAIL,)),)


def test_what_is_missing_and_what_would_fit() -> None:
    question = replace(ask(cluster(1, memory=6 << 30), context=8192, concurrency=4), lighter=(("int4", SMALLER),))
    found = shortage(question)
    assert found.use.device == "box-1"
    assert found.missing == found.use.total - (6 << 30) > 0
    assert [each.text.partition(":")[0] for each in found.nearest] == ["weights as int4", "one more host like box-1"]
    assert all(each.candidate.prediction.fits for each in found.nearest)
    error = found.error("llama")
    assert (error.exit_code, error.needed, error.available) == (4, found.use.total, 6 << 30)
    assert f"{found.missing:,} bytes" in str(error)


def test_fewer_tokens_or_sequences_may_fit() -> None:
    question = ask(cluster(1, memory=7 << 30), context=65536, concurrency=2)
    words = {each.text: each for each in shortage(question).nearest}
    less = next(each for each in words.values() if "tokens of context instead of 65,536" in each.text)
    tokens = less.question.work.context
    assert 0 < tokens < 65536
    assert less.candidate.prediction.largest_context == tokens


def test_what_the_built_in_engine_does_not_do_yet_is_said() -> None:
    question = replace(ask(cluster(1)).of(SMALLER), runtime=RUNTIMES["ferrule"])
    assert [words.partition(":")[0] for words in cautions(question)] == [
        "the built-in engine was never measured on GPUs",
    ]
    processor = replace(question.cluster.devices[0], kind="AMD EPYC (cpu)")
    assert cautions(question.of(MODEL).on(ClusterSpec((processor,)))) == []
    assert cautions(replace(question, runtime=PLAIN)) == []


def test_a_device_that_is_nearly_full_is_warned_of() -> None:
    """A model that fills 96 % of a machine was seen to run at a hundredth of what is predicted."""
    needed = single(ask(cluster(2))).prediction.memory[0].needed
    roomy, nearly = (single(ask(cluster(2, memory=round(needed / part)))) for part in (0.9, 0.96))
    assert nearly.prediction.fits
    assert tight(roomy) == []
    (said,) = tight(nearly)
    assert said.startswith("box-1: 96 % of what a model may fill is taken")


def test_hosts_without_a_cable_may_only_need_one() -> None:
    apart = replace(cluster(2, memory=6 << 30), pairs=())
    question = ask(apart)
    (found,) = shortage(question).nearest
    assert found.text == "10 Gigabit Ethernet to hosts without a cable"
    assert len(found.candidate.plan.devices) == 2


def test_curves_are_predictions() -> None:
    question = ask(cluster(2, alpha=5e-5))
    hosts = {curve.name: dict(curve.points) for curve in over_hosts(question)}
    assert hosts["single"] == {1.0: single(question).prediction.tokens_per_s}
    assert hosts["tensor"][2.0] == pytest.approx(predicted(question, tensor(2)).prediction.tokens_per_s)
    latency = {curve.name: curve.points for curve in over_latency(question)}
    rates = [rate for _, rate in latency["tensor, 2 hosts"]]
    assert rates == sorted(rates, reverse=True)
    assert [x for x, _ in latency["tensor, 2 hosts"]] == list(LATENCIES)
    assert len({rate for _, rate in latency["box-1 alone"]}) == 1
    with pytest.raises(PlanError, match="no links"):
        over_latency(ask(cluster(1)))


def test_a_curve_over_context_ends_where_memory_does() -> None:
    question = ask(cluster(1, memory=8 << 30))
    (curve,) = over_context(question)
    most = single(question).prediction.largest_context
    assert curve.points[-1][0] == most - 1 < MODEL.max_context
    assert [rate for _, rate in curve.points] == sorted((rate for _, rate in curve.points), reverse=True)
