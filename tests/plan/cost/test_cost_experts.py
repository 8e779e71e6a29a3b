"""Whole experts: what their tokens take on cables, and when the planner has them sent."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from ferrule.model import divide, read_model
from ferrule.model.layer import ExpertsSpec, Share
from ferrule.plan import ClusterSpec, DeviceSpec, PairSpec, Plan, Question, RailSpec, Stage, Workload, predict, search
from ferrule.plan.cost.experts import Sent, remote_rows
from ferrule.plan.cost.memory import weight_bytes

MIXTRAL = read_model("mixtral-8x7b", weights="bfloat16")
SMALL = replace(MIXTRAL, decoder=MIXTRAL.decoder[:4], max_context=8192)
NAMES = tuple(f"m{i}" for i in range(4))


def four(bits: float) -> ClusterSpec:
    """All joined by cables of that rate."""
    devices = tuple(DeviceSpec(name, 64 << 30, 2e11, {"bf16": 2e13}, "some") for name in NAMES)
    rails = (RailSpec("eth", 50e-6, bits / 8),)
    return ClusterSpec(devices, tuple(PairSpec(ends, rails) for ends in itertools.combinations(NAMES, 2)))


def plan_of(*, experts: bool = True, exchange: bool = False, alone: bool = False) -> Plan:
    share = Share(experts=0.25) if alone else Share.even(4)
    share = share._replace(shared=1.0) if exchange else share
    return Plan((Stage(NAMES, 0, SMALL.layers, (share,) * 4, experts, exchange),))


def test_rows_on_their_way_are_those_of_random_choices() -> None:
    dice, rows, held = random.Random(3), 20_000, divide(6, (1.0,) * 4)
    found = 0
    for row in range(rows):
        chosen = dice.sample(range(6), 2)
        found += sum(rank != row % 4 and any(a <= each < b for each in chosen) for rank, (a, b) in enumerate(held))
    assert remote_rows([b - a for a, b in held], 2, rows) == pytest.approx(found, rel=0.02)
    assert remote_rows([2, 2], 4, 10) == 10  # all choose all: each row to the one other


def test_tokens_that_are_sent_take_fewer_bytes() -> None:
    sent, experts = Sent(4, 1024, 2, 512), ExpertsSpec(8, 2, 64)
    remote = remote_rows([2] * 4, 2, 512)
    reached = 1 - 6 * 5 / (8 * 7)
    masked, choices = 2 * sent.all_reduce, 3 * 512 * 2 * 8
    assert sum(sent.layer(experts, remote, alone=False)) == pytest.approx(masked * (1 + reached) / 2 + choices)
    assert sum(sent.layer(experts, remote, alone=True)) == pytest.approx(sent.all_reduce * (1 + reached) / 2)
    assert sum(sent.layer(None, 0, alone=False)) == masked
    assert sent.layer(None, 0, alone=True) == ()


@pytest.mark.parametrize("bits", [1e9, 10e9])
def test_the_planner_takes_the_quickest_form(bits: float) -> None:
    """For prompts over slow cables tokens are sent; one token at a time has fewer messages where they are masked."""
    forms = {
        "inside": plan_of(experts=False),
        "masked": plan_of(),
        "sent": plan_of(exchange=True),
        "masked, attention whole": plan_of(alone=True),
        "sent, attention whole": plan_of(exchange=True, alone=True),
    }
    question = Question(SMALL, four(bits), Workload(context=4096, prompt=2048, concurrency=1))
    predicted = {name: predict(question, plan) for name, plan in forms.items()}
    prompt = {name: each.ttft_seconds for name, each in predicted.items()}
    token = {name: each.token_seconds for name, each in predicted.items()}
    assert prompt["sent"] < prompt["masked"]
    assert prompt["sent, attention whole"] < prompt["masked, attention whole"]
    assert token["masked"] < token["sent"]
    for objective, figures in (("ttft", prompt), ("latency", token)):
        asked = replace(question, objective=objective)
        best = search(asked).best
        assert best is not None
        figure = best.prediction.ttft_seconds if objective == "ttft" else best.prediction.token_seconds
        assert figure <= min(figures.values()) * (1 + 1e-9)


def test_tokens_are_sent_by_programs_only() -> None:
    other = replace(SMALL, decoder=tuple(replace(layer, program_operations=None) for layer in SMALL.decoder))
    for model, possible in ((SMALL, True), (other, False)):
        found = search(Question(model, four(1e8), Workload(prompt=2048), objective="ttft")).candidates
        assert any(stage.exchange for each in found for stage in each.plan.stages) == possible


def test_four_devices_hold_a_quarter_each() -> None:
    """Of experts, and of attention; the router and norms are on every one."""
    whole = sum(weight_bytes(SMALL, Plan((Stage(("a",), 0, SMALL.layers),))))
    for exchange in (False, True):
        assert max(weight_bytes(SMALL, plan_of(exchange=exchange))) <= 1.1 * whole / 4
