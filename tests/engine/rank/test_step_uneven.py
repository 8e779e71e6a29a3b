"""Step programs of unequal shares, whole experts and stages of different width give what transformers gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from packed_models import packed_model
from test_format_splits import MAKERS, in_products
from test_parity import TOKENS
from test_step import FAMILIES, logits_by
from test_uneven_splits import MIXTURES
from tiny_models import make
from transformers import AutoModelForCausalLM
from uneven_plans import BY_SPEED, alone, plan_of, shares_of

from ferrule.engine.source import describe, read_config
from ferrule.model import ModelSpec
from ferrule.plan import Plan, make_plan

QUICK = ("llama", "phi3", "gpt_oss")


def check(directory: Path, plan: Plan, whole: Path | None = None) -> None:
    """``whole``: where transformers can read the numbers, if not in ``directory``."""
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(whole or directory, dtype=torch.float32).eval()(ids).logits[0]
    logits = logits_by(directory, plan, ids[0].tolist())
    assert (logits - expected[-len(logits) :]).abs().max() < 1e-4


def spec_of(directory: Path) -> ModelSpec:
    return describe(directory, read_config(directory))


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES]
)
def test_uneven_shares_and_stages_of_different_width(name: str, tmp_path: Path) -> None:
    spec = spec_of(make(name, tmp_path))
    check(tmp_path, plan_of(spec, shares_of(spec, BY_SPEED), shares_of(spec, (1.0, 3.0))))


@pytest.mark.parametrize(
    "name",
    ["qwen3_moe", *(pytest.param(each, marks=pytest.mark.slow) for each in MIXTURES if each in FAMILIES)],
)
def test_whole_experts(name: str, tmp_path: Path) -> None:
    """Beside attention that is cut, and attention that is not."""
    spec = spec_of(make(name, tmp_path))
    check(tmp_path, plan_of(spec, shares_of(spec, BY_SPEED, (1.0, 1.0, 2.0)), alone(1.0, 2.0), experts=True))


@pytest.mark.parametrize("ranks", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_packed_weights_are_cut_at_their_groups(ranks: int, tmp_path: Path) -> None:
    settings, quantise = MAKERS["gptq"]
    sizes = {"head_dim": 32, "intermediate_size": 256, "num_hidden_layers": 2}  # in groups of 32
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), **sizes)
    check(directory, make_plan(spec_of(directory), tensor=ranks), directory.with_name("m-plain"))


def test_packed_experts_are_given_out_whole(tmp_path: Path) -> None:
    settings, quantise = MAKERS["mlx"]
    sizes = {"num_experts": 4, "moe_intermediate_size": 64, "mlp_only_layers": [], "head_dim": 32}
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), family="qwen3_moe", **sizes)
    check(directory, make_plan(spec_of(directory), tensor=3, experts=True), directory.with_name("m-plain"))
