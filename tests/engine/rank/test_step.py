"""Step programs give what transformers gives in one process, over the native fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from in_threads import on_plan, thread_groups
from packed_models import packed_model
from test_format_splits import MAKERS, in_products
from test_parity import PIECES, SPLITS, TOKENS, plan_for
from tiny_models import make
from transformers import AutoModelForCausalLM

from ferrule.engine.devices import open_device
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.runner import choose_runner
from ferrule.engine.rank.step.describe import Unfit
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config
from ferrule.fabric import Group
from ferrule.plan import BUILT_IN_ENGINE, Plan

FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "phi3",
    "mistral",
    "granite",
    "deepseek_v2",
    "deepseek_v3",
    "glm4",
    "glm4_moe",
    "starcoder2",
)

QUICK = [(2, 1), (1, 2)]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}


def logits_of(directory: Path, tensor: int, pipeline: int, ids: list[int], weights: str | None = None) -> torch.Tensor:
    return logits_by(directory, plan_for(directory, tensor, pipeline), ids, weights)


def logits_by(directory: Path, plan: Plan, ids: list[int], weights: str | None = None) -> torch.Tensor:
    options = RankOptions(str(directory), "float32", plan, 1, 128, 4, 64, (), weights=weights)

    def body(world: Group, stage: Group) -> Any:
        runner = StepRunner(options, world, stage, open_device("cpu", 1))
        pieces = []
        for first, last in PIECES:
            for place in range(first, last) if first else [last - 1]:
                count = place + 1 - (first if place == last - 1 and not first else place)
                seen = place + 1 - count
                pieces.append(runner.run(Batch((Span(7, seen, count, True),), tuple(ids[seen : place + 1]))))
        return None if pieces[0] is None else torch.cat(pieces)

    (logits,) = [each for each in on_plan(plan, body) if each is not None]
    return logits


@pytest.mark.parametrize(
    "split", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in SPLITS]
)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name: str, split: tuple[int, int], tmp_path: Path) -> None:
    directory = make(name, tmp_path)
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()(ids).logits[0]
    logits = logits_of(directory, *split, ids[0].tolist())
    assert (logits - expected[-len(logits) :]).abs().max() < 1e-4, name


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "q_lora_rank": 24}),
        ("deepseek_v2", {"routed_scaling_factor": 2.5}),
        ("deepseek_v3", {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False}),
        ("deepseek_v3", {"rope_parameters": YARN, "n_group": 4, "topk_group": 2}),
        ("glm4_moe", {"use_qk_norm": False, "partial_rotary_factor": 0.5}),
        ("starcoder2", {"sliding_window": 8}),
    ],
)
def test_what_models_of_a_family_differ_in(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    directory = make(name, tmp_path, **changes)
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()(ids).logits[0]
    logits = logits_of(directory, 2, 1, ids[0].tolist())
    assert (logits - expected[-len(logits) :]).abs().max() < 1e-4


def test_latent_attention_keeps_latents(tmp_path: Path) -> None:
    directory = make("deepseek_v3", tmp_path)
    runner, world = runner_of(directory)
    world.close()
    layers, latent, turned = 4, 16, 8
    assert runner.cache_bytes_per_token(0) == layers * (latent + turned + latent) * 4  # the latent is also the value
    spec = describe(directory, read_config(directory))
    policy = BUILT_IN_ENGINE.cache_of(spec)
    assert sum(layer.cache_bytes(1, policy) for layer in spec.decoder) == runner.cache_bytes_per_token(0)


def runner_of(directory: Path, dtype: str = "float32", threads: int = 1) -> tuple[StepRunner, Group]:
    plan = plan_for(directory, 1, 1)
    options = RankOptions(str(directory), dtype, plan, threads, 128, 4, 64, ())
    (world,) = thread_groups(1)
    return StepRunner(options, world, world, open_device("cpu", threads)), world


def rows_of(runner: StepRunner, *spans: Span, ids: list[int]) -> torch.Tensor:
    """Logits of the last token of each span, whose tokens are those of ``ids`` that follow what it has seen."""
    tokens = [token for span in spans for token in ids[span.seen : span.seen + span.tokens]]
    logits = runner.run(Batch(spans, tuple(tokens)))
    assert logits is not None
    return logits


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(each, marks=pytest.mark.slow) for each in ("qwen3_moe", "gemma3_text", "deepseek_v3"))],
)
def test_a_token_has_the_same_bits_in_every_batch(name: str, dtype: str, threads: int, tmp_path: Path) -> None:
    ids = torch.randint(3, 131, (60,), generator=torch.Generator().manual_seed(2)).tolist()
    runner, world = runner_of(make(name, tmp_path), dtype, threads)
    alone = [rows_of(runner, Span(1, seen, 1, True), ids=ids) for seen in range(60)][-1]
    whole = rows_of(runner, Span(2, 0, 60, True), ids=ids)
    rows_of(runner, Span(3, 0, 37, True), Span(4, 0, 20, False), ids=ids)
    mixed = rows_of(runner, Span(4, 20, 30, True), Span(3, 37, 23, True), ids=ids)
    world.close()
    assert torch.equal(alone, whole)
    assert torch.equal(mixed[1:], whole)


def test_a_released_sequence_gives_its_pages_to_the_next(tmp_path: Path) -> None:
    runner, world = runner_of(make("llama", tmp_path))
    ids = list(range(3, 63))
    first = rows_of(runner, Span(1, 0, 60, True), ids=ids)
    runner.run(Batch(released=(1,)))
    again = rows_of(runner, Span(2, 0, 60, True), ids=ids)
    with pytest.raises(ValueError, match="no such sequence is in the cache"):
        rows_of(runner, Span(1, 5, 1, True), ids=ids)
    assert runner.cache_bytes_per_token(2) == 4 * 4 * (8 + 16) * 4  # layers, heads, a key and a whole vector, float32
    world.close()
    assert torch.equal(first, again)


def test_the_first_layers_can_be_captured(tmp_path: Path) -> None:
    directory = make("llama", tmp_path)
    runner, world = runner_of(directory)
    ids = list(range(3, 23))
    captured = runner.capture(Batch((Span(1, 0, 20, True),), tuple(ids)), 2, [4, 19])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[2][0]
    world.close()
    assert (captured - hidden[[4, 19]]).abs().max() < 1e-5


def test_what_a_program_does_is_printed(tmp_path: Path) -> None:
    runner, world = runner_of(make("qwen3", tmp_path))
    lines = str(runner.description).splitlines()
    world.close()
    assert lines[0] == "embed    table=model.embed_tokens.weight to=hidden"
    attention = [line for line in lines if line.startswith("attend")]
    assert len(attention) == 4
    assert attention[0].startswith("attend   query=qkv key=qkv+64 value=qkv+96 to=attended layer=0 heads=8 scale=0.35")
    assert sum(line.startswith("reduce") for line in lines) == 8


@pytest.mark.parametrize("name", ["olmo2", "gpt_neox", "cohere"])
def test_other_families_run_through_their_modules(name: str, tmp_path: Path) -> None:
    with pytest.raises(Unfit):
        runner_of(make(name, tmp_path))
    plan = plan_for(tmp_path, 1, 1)
    (world,) = thread_groups(1)
    runner = choose_runner(RankOptions(str(tmp_path), "float32", plan, 1, 128, 4, 64, ()), world, world, lambda _: None)
    world.close()
    assert isinstance(runner, TorchRunner)


@pytest.mark.parametrize("split", [(1, 1), (2, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MAKERS)
def test_packed_weights_are_multiplied_as_their_numbers(name: str, split: tuple[int, int], tmp_path: Path) -> None:
    settings, quantise = MAKERS[name]
    directory = packed_model(tmp_path / "m", settings, in_products(quantise))
    check_packed(directory, split)


@pytest.mark.parametrize("name", ["gptq", "mlx"])
def test_packed_experts(name: str, tmp_path: Path) -> None:
    settings, quantise = MAKERS[name]
    experts = {"num_experts": 4, "moe_intermediate_size": 64, "mlp_only_layers": []}
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), family="qwen3_moe", **experts)
    check_packed(directory, (2, 1))


@pytest.mark.parametrize("split", [(2, 1), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_packed_latents(split: tuple[int, int], tmp_path: Path) -> None:
    settings, quantise = MAKERS["compressed-tensors"]
    sizes = {"kv_lora_rank": 32, "q_lora_rank": 32, "v_head_dim": 16, "moe_intermediate_size": 64}
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), family="deepseek_v3", **sizes)
    check_packed(directory, split)


def check_packed(directory: Path, split: tuple[int, int], weights: str | None = None) -> None:
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    plain = directory.with_name(f"{directory.name}-plain")
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()(ids).logits[0]
    logits = logits_of(directory, *split, ids[0].tolist(), weights)
    assert (logits - expected[-len(logits) :]).abs().max() < 1e-4


def test_activations_of_8_bits_keep_the_logits_near(tmp_path: Path) -> None:
    """In bfloat16 products of small integers round activations, as llama.cpp's do."""
    settings, quantise = MAKERS["gptq"]
    directory = packed_model(tmp_path / "m", settings, in_products(quantise))
    ids = torch.randint(3, 131, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    results = []
    for dtype in ("float32", "bfloat16"):
        runner, world = runner_of(directory, dtype)
        results.append(rows_of(runner, Span(1, 0, TOKENS, True), ids=ids))
        world.close()
    exact, rounded = results
    assert 1e-4 < (exact - rounded).norm() / exact.norm() < 0.05
