"""Tokens that are sent to the ranks of their experts: the same answers, and as many bytes as the planner counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from in_threads import on_all, thread_groups
from test_step_uneven import check, spec_of
from tiny_models import make
from transformers import AutoModelForCausalLM
from uneven_plans import alone, plan_of, shares_of

from ferrule.engine.devices import open_device
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.errors import PlanError
from ferrule.fabric import Group
from ferrule.fabric.routing.algorithms import choose_algorithms
from ferrule.model import divide
from ferrule.plan import Plan
from ferrule.plan.cost.experts import Sent

FAMILIES = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm4_moe")
QUICK = ("deepseek_v3",)
RANKS, ROWS = 4, 18
WIDE = 4096
"""So wide that a row has more bytes than all headers and acknowledgements of a layer's messages."""


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES]
)
def test_tokens_are_sent_to_their_experts(name: str, tmp_path: Path) -> None:
    """Beside attention that is cut, and attention that is not."""
    spec = spec_of(make(name, tmp_path))
    cut = shares_of(spec, (2.0, 1.0, 1.0), (1.0, 1.0, 2.0))
    check(tmp_path, plan_of(spec, cut, alone(1.0, 2.0), experts=True, exchange=True))
    check(tmp_path, plan_of(spec, alone(2.0, 1.0, 1.0), cut, experts=True, exchange=True))


def options_of(directory: Path, plan: Plan, dtype: str = "float32") -> RankOptions:
    return RankOptions(str(directory), dtype, plan, 1, 128, 4, 64, ())


def sent_by(group: Group) -> int:
    """Bytes of the collectives' stream so far, headers included."""
    peers = (peer for peer in range(group.size) if peer != group.rank)
    return sum(sent for peer in peers for _, sent, *_ in group._core.native.rails(0, peer))


def layer_bytes(directory: Path, plan: Plan, ids: Sequence[int], dtype: str) -> list[int]:
    """What all ranks together send for each layer, and headers, for a step of these tokens."""
    stages = thread_groups(RANKS, choose_algorithms(None, RANKS, force="pieces"))

    def body(group: Group) -> list[int]:
        runner = StepRunner(options_of(directory, plan, dtype), group, group, open_device("cpu", 1))
        sent = []
        for depth in range(1, runner.shard.last_layer + 1):
            before = sent_by(group)
            runner.capture(Batch((Span(depth, 0, len(ids), False),), tuple(ids)), depth, [0])
            group.barrier()  # whose messages are sent when those before are
            sent.append(sent_by(group) - before)
        return sent

    try:
        counted = [sum(each) for each in zip(*on_all(stages, body), strict=True)]
    finally:
        for group in stages:
            group.close()
    return [more - less for less, more in pairwise(counted)]


def chosen_experts(directory: Path, ids: Sequence[int]) -> dict[int, list[set[int]]]:
    """By layer, what transformers' router chooses for each token."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    found: dict[int, list[set[int]]] = {}

    def told(layer: int) -> Any:
        return lambda module, given, result: found.update({layer: [set(each) for each in result[-1].tolist()]})

    for number, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "experts"):
            layer.mlp.gate.register_forward_hook(told(number))
    with torch.inference_mode():
        model(torch.tensor([ids]))
    return found


@pytest.mark.parametrize(("dtype", "per_token"), [("float32", 2), ("bfloat16", 6)])
@pytest.mark.parametrize("whole_attention", [False, True])
def test_bytes_are_those_that_the_planner_counts(
    whole_attention: bool, dtype: str, per_token: int, tmp_path: Path
) -> None:
    """Without headers. Rounded numbers may be routed otherwise: then to all experts."""
    spec = spec_of(make("qwen3_moe", tmp_path, hidden_size=WIDE, num_experts_per_tok=per_token))
    shares = alone(*(1.0,) * RANKS) if whole_attention else shares_of(spec, (1.0,) * RANKS)
    ids = torch.randint(3, 131, (ROWS,), generator=torch.Generator().manual_seed(1)).tolist()
    sent = Sent(RANKS, WIDE, 4 if dtype == "float32" else 2, ROWS)
    chosen, held = chosen_experts(tmp_path, ids), divide(6, (1.0,) * RANKS)
    owners = [rank for rank in range(RANKS) for _ in range(ROWS * rank // RANKS, ROWS * (rank + 1) // RANKS)]

    def check_counted(counted: int, expected: float) -> None:
        assert abs(counted - expected) < WIDE * sent.number

    exchanged = layer_bytes(tmp_path, plan_of(spec, shares, experts=True, exchange=True), ids, dtype)
    for number, (layer, counted) in enumerate(zip(spec.decoder[1:], exchanged, strict=True), 1):
        remote = sum(
            rank != owner and not experts.isdisjoint(range(*held[rank]))
            for owner, experts in zip(owners, chosen.get(number, ()), strict=False)
            for rank in range(RANKS)
        )
        check_counted(counted, sum(sent.layer(layer.experts, remote, alone=whole_attention)))
    summed = layer_bytes(tmp_path, plan_of(spec, shares, experts=True), ids, dtype)
    for layer, counted in zip(spec.decoder[1:], summed, strict=True):
        sums = (1 if layer.experts else 0) if whole_attention else 2
        check_counted(counted, sums * sent.all_reduce)


def held_bytes(directory: Path, options: EngineOptions) -> list[int]:
    """Of weights, by rank."""
    plan = options.plan(spec_of(directory))
    groups = thread_groups(plan.world_size)

    def body(group: Group) -> int:
        return StepRunner(options_of(directory, plan), group, group, open_device("cpu", 1)).weight_bytes

    try:
        return on_all(groups, body)
    finally:
        for group in groups:
            group.close()


@pytest.mark.parametrize("exchange", [False, True])
def test_four_ranks_hold_a_quarter_each(exchange: bool, tmp_path: Path) -> None:
    sizes = {"num_experts": 16, "moe_intermediate_size": 64, "mlp_only_layers": [], "num_key_value_heads": 4}
    directory = make("qwen3_moe", tmp_path, **sizes)
    held = held_bytes(directory, EngineOptions("m", tensor=RANKS, expert_parallel=True, expert_exchange=exchange))
    (whole,) = held_bytes(directory, EngineOptions("m"))
    assert max(held) <= 1.1 * whole / RANKS


def test_models_without_a_program_are_refused(tmp_path: Path) -> None:
    spec = spec_of(make("qwen2_moe", tmp_path))
    with pytest.raises(PlanError, match=r"by native step programs, and Qwen2Moe.* has none; --expert-parallel works"):
        EngineOptions("m", tensor=2, expert_exchange=True).plan(spec)
