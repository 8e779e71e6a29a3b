"""Prompts on devices of their own: found where it pays, by what is asked, and told why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrule.model import kept_in, read_model
from ferrule.plan import ClusterSpec, DeviceSpec, PairSpec, Plan, Question, RailSpec, Workload, search, with_apart
from ferrule.plan.explain import apart_verdict
from ferrule.plan.question import Objective

MODEL = read_model("llama-3.2-3b")
QUICK = DeviceSpec("quick", 24 << 30, 60e9, {"bf16": 20e12})
"""Much arithmetic, a slow memory."""
LARGE = DeviceSpec("large", 120 << 30, 200e9, {"bf16": 2e12})
WORK = Workload(context=16384, prompt=8192)


def ask(*devices: DeviceSpec, objective: Objective = "latency", bandwidth: float = 1.2e9) -> Question:
    rails = (RailSpec("ethernet-10g", 200e-6, bandwidth),)
    names = [device.name for device in devices]
    pairs = tuple(PairSpec((a, b), rails) for a in names for b in names if a < b)
    return Question(MODEL, ClusterSpec(devices, pairs), WORK, objective)


def found(question: Question) -> list[Plan]:
    return [each.plan for each in with_apart(question, search(question)).candidates]


def groups(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    return None if plan.prompts is None else (plan.prompts.devices, plan.devices)


@pytest.mark.parametrize("objective", ["latency", "throughput", "answer"])
def test_a_quick_box_beside_a_large_one_computes_its_prompts(objective: Objective) -> None:
    question = ask(QUICK, LARGE, objective=objective)
    plain, both = search(question), with_apart(question, search(question))
    assert plain.best is not None
    assert both.best is not None
    assert groups(both.best.plan) == (("quick",), ("large",))
    assert both.best.prediction.ttft_seconds < plain.best.prediction.ttft_seconds / 1.2
    assert both.best.prediction.answer_seconds < plain.best.prediction.answer_seconds / 1.2
    words = apart_verdict(question, both.best, plain.best)
    assert words.startswith("Prompts on quick, tokens on large: the first token comes after")
    assert ("an answer of 256 tokens takes" in words) == (objective == "answer")
    assert "over ethernet-10g (large-quick), while it is computed" in words


def test_the_first_token_alone_comes_soonest_where_nothing_is_handed_over() -> None:
    first, second, *_ = found(ask(QUICK, LARGE, objective="ttft"))
    assert (first.devices, first.prompts) == (("quick",), None)
    assert groups(second) == (("quick",), ("large",))


@pytest.mark.parametrize(
    "question",
    [
        ask(LARGE, replace(LARGE, name="larger")),
        ask(replace(QUICK, memory=4 << 30), LARGE),
        ask(QUICK, LARGE, bandwidth=1e6),
        ask(QUICK, LARGE, objective="context"),
        ask(QUICK),
    ],
    ids=["alike", "too small for a copy", "slow cable", "room counts", "alone"],
)
def test_there_is_none_where_it_does_not_pay(question: Question) -> None:
    assert [plan for plan in found(question) if plan.prompts is not None] == []


def test_groups_are_split_each_by_itself() -> None:
    devices = (QUICK, replace(QUICK, name="quicker"), LARGE, replace(LARGE, name="larger"))
    apart = {groups(plan) for plan in found(ask(*devices)) if plan.prompts is not None}
    assert apart
    for each in apart:
        assert each is not None
        prompts, tokens = each
        assert set(prompts) <= {"quick", "quicker"}
        assert set(tokens) <= {"large", "larger"}


def test_what_the_engine_cannot_hand_over_is_told_and_left_out_where_it_is_to_run() -> None:
    question = ask(replace(QUICK, device="cuda:0"), LARGE)
    (plan,) = [plan for plan in found(question) if plan.prompts is not None]
    assert plan.obstacle is None
    quantised = replace(question, model=kept_in(MODEL, "int8"))
    (plan,) = [plan for plan in found(quantised) if plan.prompts is not None]
    assert plan.obstacle == "the built-in engine hands quantised keys and values over between processors only"
    assert all(plan.prompts is None for plan in found(replace(quantised, runnable_only=True)))
