"""Whole copies beside splits: which devices have one, what they do together, and what is said of it. By arithmetic."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.model import read_model
from ferrule.plan import (
    ClusterSpec,
    DeviceSpec,
    PairSpec,
    Plan,
    Question,
    RailSpec,
    Runtime,
    Stage,
    Workload,
    predicted,
    search,
)
from ferrule.plan.cluster import cluster_from_profile
from ferrule.plan.explain.copies import copies_verdict
from ferrule.plan.replicas import Replicated, _shares, best_replicas, divide

MODEL = read_model("llama-3.2-3b", weights="bfloat16")
PLAIN = Runtime("plain")


def boxes(*gib: float, alpha: float = 1e-2, speeds: tuple[float, ...] = ()) -> ClusterSpec:
    """``gib``: memory of each; ``speeds``: in GB/s."""
    names = [f"box-{number}" for number in range(len(gib))]
    devices = tuple(
        DeviceSpec(name, int(size * 2**30), speed * 1e9, {"bf16": 50e12}, launch_seconds=0.0)
        for name, size, speed in zip(names, gib, speeds or (200.0,) * len(gib), strict=True)
    )
    pairs = tuple(PairSpec(ends, (RailSpec("eth0", alpha, 1e9),)) for ends in combinations(names, 2))
    return ClusterSpec(devices, pairs)


def ask(cluster: ClusterSpec, concurrency: int = 8, **work: int) -> Question:
    return Question(MODEL, cluster, Workload(concurrency=concurrency, context=1024, **work), "throughput", PLAIN)


def told(question: Question) -> str:
    answers = search(question)
    assert answers.best is not None
    return copies_verdict(question, answers.best, answers.single, best_replicas(question))


def groups(found: Replicated | None) -> list[tuple[str, ...]]:
    assert found is not None
    return [each.plan.devices for each in found.copies]


def test_copies_on_equal_machines_do_together_what_each_does_alone() -> None:
    question = ask(boxes(32, 32))
    found = best_replicas(question)
    alone = predicted(question.with_work(concurrency=4), Plan((Stage(("box-0",), 0, MODEL.layers),)))
    assert groups(found) == [("box-0",), ("box-1",)]
    assert found is not None
    assert found.throughput == pytest.approx(2 * alone.prediction.throughput)
    assert found.tokens_per_s == alone.prediction.tokens_per_s
    assert found.ttft_seconds == alone.prediction.ttft_seconds


def test_what_holds_the_model_has_a_copy_and_the_rest_one_together() -> None:
    assert groups(best_replicas(ask(boxes(6, 32, 6, 32)))) == [("box-1",), ("box-3",), ("box-0", "box-2")]
    assert groups(best_replicas(ask(boxes(6, 32, 32)))) == [("box-1",), ("box-2",)], "one is left over"
    assert groups(best_replicas(ask(boxes(6, 6, 6, 6)))) == [("box-0", "box-1"), ("box-2", "box-3")]
    assert best_replicas(ask(boxes(6, 6))) is None
    assert best_replicas(ask(boxes(6, 32))) is None
    assert best_replicas(ask(boxes(32, 32, 32), concurrency=1)) is None, "one sequence needs no second copy"


def test_as_many_copies_as_are_asked_for() -> None:
    four = boxes(32, 32, 32, 32)
    assert len(groups(best_replicas(ask(four)))) == 4
    assert len(groups(best_replicas(ask(four), 2))) == 2
    assert len(groups(best_replicas(ask(four, concurrency=1), 3))) == 3
    assert best_replicas(ask(four), 5) is None
    assert len(groups(best_replicas(ask(four, concurrency=2)))) == 2, "no more than there are sequences"


def test_a_machine_that_is_three_times_as_fast_has_three_times_as_many_sequences() -> None:
    found = best_replicas(ask(boxes(32, 32, speeds=(300.0, 100.0)), concurrency=12))
    assert found is not None
    assert [each.prediction.concurrency for each in found.copies] == [9, 3]


def test_hosts_that_share_cores_are_no_faster_together() -> None:
    apart, shared = boxes(32, 32), boxes(32, 32)
    shared = ClusterSpec(shared.devices, shared.pairs, cores=1)
    one, other = best_replicas(ask(apart)), best_replicas(ask(shared))
    assert one is not None
    assert other is not None
    assert other.throughput == pytest.approx(one.throughput / 2)


def test_the_verdict_says_how_much_and_why() -> None:
    slow, quick = ask(boxes(32, 32)), ask(boxes(32, 32, alpha=1e-7), concurrency=2)
    assert "2 whole copies (ferrule serve --replicas 2) do " in told(slow)
    assert told(slow).endswith("each does by itself what box-0 does.")
    desk = Question(MODEL, cluster_from_profile("two-pc-10g"), Workload(concurrency=16), "throughput")
    assert told(desk).endswith("3 % of a step of the split are messages, and copies have none.")
    assert "would do 0." in told(quick)
    assert told(quick).endswith("each reads all weights for its own sequences alone.")
    assert told(ask(boxes(6, 6))).startswith("Whole copies do not fit: box-0 alone lacks 0.")
    assert told(ask(boxes(32, 32), concurrency=1)) == ""
    assert told(ask(boxes(32))) == ""


@given(st.integers(1, 200), st.lists(st.floats(0.01, 100), min_size=1, max_size=9))
def test_shares_add_up_and_follow_the_speeds(sequences: int, speeds: list[float]) -> None:
    shares = _shares(sequences, speeds)
    assert sum(shares) == sequences
    assert all(abs(share - sequences * speed / sum(speeds)) <= 1 for share, speed in zip(shares, speeds, strict=True))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=9), st.integers(1, 9))
def test_a_division_has_every_unit_once_and_is_even(sizes: list[int], count: int) -> None:
    units = [tuple(f"{host}-{device}" for device in range(size)) for host, size in enumerate(sizes)]
    found = divide(units, count)
    assert [name for group in found for name in group] == [name for unit in units for name in unit]
    hosts = [len({name.partition("-")[0] for name in group}) for group in found]
    assert max(hosts) - min(hosts) <= 1
    assert len(found) == count


def test_devices_of_a_host_stay_together_where_copies_share_no_host() -> None:
    cards = [replace(each, host=f"host-{number // 2}") for number, each in enumerate(boxes(32, 32, 32, 32).devices)]
    question = ask(replace(boxes(32, 32, 32, 32), devices=tuple(cards)))
    assert len(groups(best_replicas(question))) == 4
    found = best_replicas(question, whole_hosts=True)
    assert found is not None
    assert found.groups == (("box-0", "box-1"), ("box-2", "box-3"))
