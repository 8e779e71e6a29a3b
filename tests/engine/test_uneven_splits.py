"""Models cut unevenly, by whole experts, and into stages of different width give what transformers gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_parity import QUICK, check_logits, check_plan
from tiny_models import CONFIGS, make
from uneven_plans import BY_SPEED, alone, plan_of, shares_of

from ferrule.engine.source import describe, read_config
from ferrule.errors import PlanError
from ferrule.model import ModelSpec, Share
from ferrule.plan import make_plan
from ferrule.plan.obstacle import obstacle_of


def spec_of(name: str, directory: Path) -> ModelSpec:
    make(name, directory)
    return describe(directory, read_config(directory))


def check_uneven(name: str, directory: Path) -> None:
    """Three ranks and then two, of which the first sends to one and the last sends to none."""
    spec = spec_of(name, directory)
    plan = plan_of(spec, shares_of(spec, BY_SPEED), shares_of(spec, (1.0, 3.0)))
    if spec.pipeline_refusal:
        plan = plan_of(spec, shares_of(spec, BY_SPEED))
    if any(layer.experts and layer.experts.cut == "whole" for layer in spec.decoder):
        assert "experts" in (obstacle_of(spec, plan) or "")  # such a plan has to say so, however it is cut
    else:
        assert obstacle_of(spec, plan) is None
    check_plan(name, directory, plan)


@pytest.mark.parametrize("name", QUICK)
def test_uneven_shares_give_the_same_logits(name: str, tmp_path: Path) -> None:
    check_uneven(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in QUICK])
def test_uneven_shares_of_every_architecture(name: str, tmp_path: Path) -> None:
    check_uneven(name, tmp_path)


@pytest.mark.parametrize("ranks", [3, 5, 7])
def test_ranks_that_divide_nothing(ranks: int, tmp_path: Path) -> None:
    """4 key/value heads, 8 query heads and 96 columns."""
    check_logits("llama", make("llama", tmp_path, num_hidden_layers=2), ranks, 1)


def test_a_wider_stage_gets_its_hidden_states_from_a_narrower_one(tmp_path: Path) -> None:
    spec = spec_of("llama", tmp_path)
    plan = plan_of(spec, (Share(),), shares_of(spec, BY_SPEED))
    assert [plan.receivers(rank) for rank in range(1)] == [(1, 2, 3)]
    check_plan("llama", tmp_path, plan)


def check_experts(name: str, directory: Path) -> None:
    """Attention cut beside whole experts, and then whole on every rank."""
    spec = spec_of(name, directory)
    stages = [shares_of(spec, BY_SPEED, (1.0, 1.0, 2.0)), alone(1.0, 2.0)]
    plan = plan_of(spec, *(stages[:1] if spec.pipeline_refusal else stages), experts=True)
    assert obstacle_of(spec, plan) is None
    check_plan(name, directory, plan)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_whole_experts_give_the_same_logits(name: str, tmp_path: Path) -> None:
    check_experts(name, tmp_path)


def test_experts_that_all_compute_every_token_are_not_given_out(tmp_path: Path) -> None:
    spec = spec_of("llama4_text", tmp_path)
    with pytest.raises(PlanError, match="--expert-parallel: all experts of Llama4ForCausalLM compute every token"):
        make_plan(spec, tensor=2, experts=True)


MIXTURES = [
    name
    for name, how in CONFIGS.items()
    if {"num_experts", "num_local_experts", "n_routed_experts"} & how.keys()
    and name not in ("qwen3_moe", "gpt_oss", "llama4_text")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_whole_experts_of_every_architecture(name: str, tmp_path: Path) -> None:
    check_experts(name, tmp_path)
