"""Families whose attention is not the usual one: several sequences at different places in one batch, long prompts, and
what their caches take."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from on_devices import logits_of, make_runners
from plugged import plug_in
from thread_group import Shared, ThreadGroup, run_ranks
from tiny_models import long_rope, make
from transformers import AutoConfig, AutoModelForCausalLM

from ferrule.engine.architectures import short_context
from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.source import describe, read_config
from ferrule.engine.types import SamplingParams
from ferrule.errors import ModelError, PlanError
from ferrule.model import Share, read_model
from ferrule.model.families.family import FAMILIES
from ferrule.plan import BUILT_IN_ENGINE, Plan, make_plan

LONG = 8192
SPECIAL: dict[str, dict[str, Any]] = {
    "llama4_text": {},
    "deepseek_v2": {},
    "glm4_moe_lite": {},
    "youtu": {},
    "deepseek_v3": {},
    "minicpm3": {},
    "deepseek_v32": {"index_n_heads": 8},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "o_groups": 2,
        "index_n_heads": 8,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    },
    "glm_moe_dsa": {"index_n_heads": 8, "indexer_types": None},
    "gemma3n_text": {"num_hidden_layers": 4, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]},
    "phi3": long_rope(18) | {"num_attention_heads": 8, "num_key_value_heads": 4},
}
SLOW = ("llama4_text", "deepseek_v3", "phi3", "gemma3n_text")
"""Families whose long prompt is no soak test."""
STEPS: tuple[tuple[tuple[int, int, int], ...], ...] = (
    ((0, 0, 13),),
    ((0, 13, 6), (1, 0, 9)),
    ((1, 9, 1), (0, 19, 1), (2, 0, 2)),
    ((2, 2, 20), (1, 10, 5)),
)
"""Batches of (sequence, tokens seen, tokens new)."""


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, 131, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def check(directory: Path, steps: Sequence[Sequence[tuple[int, int, int]]], split: tuple[int, int], kind: str) -> None:
    """Logits behind every piece of each sequence equal those of transformers for that sequence alone."""
    plan = make_plan(describe(directory, read_config(directory)), tensor=split[0], pipeline=split[1])
    pieces = [piece for step in steps for piece in step]
    lengths = {number: max(seen + new for each, seen, new in pieces if each == number) for number, _, _ in pieces}
    prompts = {number: tokens(length, number) for number, length in lengths.items()}
    given = [
        Batch(
            tuple(Span(number, seen, new, True, 0 if seen else lengths[number]) for number, seen, new in step),
            tuple(token for number, seen, new in step for token in prompts[number][seen : seen + new]),
        )
        for step in steps
    ]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = {number: model(torch.tensor([ids])).logits[0] for number, ids in prompts.items()}
    devices = [f"{kind}:{rank}" if kind != "cpu" else kind for rank in range(plan.world_size)]
    found = torch.cat(logits_of(directory, plan, devices, given))
    expected = torch.stack([rows[number][seen + new - 1] for number, seen, new in pieces])
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("llama4_text", "deepseek_v3") else pytest.param(name, marks=pytest.mark.slow)
        for name in SPECIAL
    ],
)
def test_sequences_at_different_places_of_one_batch(name: str, tmp_path: Path) -> None:
    make(name, tmp_path, **SPECIAL[name])
    open_device("emulated", 1)
    plug_in(Machine(0, seed=0))
    for kind in ("cpu", "emulated"):
        check(tmp_path, STEPS, (1, 1), kind)


@pytest.mark.slow
@pytest.mark.parametrize("split", [(2, 1), (2, 2)])
def test_compressed_entries_of_several_sequences_on_several_ranks(split: tuple[int, int], tmp_path: Path) -> None:
    """On the second stage, too, tokens choose experts; a sequence starts again under its old number."""
    make("deepseek_v4", tmp_path, mlp_layer_types=["moe", "moe", "hash_moe", "hash_moe"])
    check(tmp_path, (((0, 0, 3), (1, 0, 9)), *STEPS), split, "cpu")


def test_groups_of_heads_that_do_not_divide_are_refused_before_loading(tmp_path: Path) -> None:
    make("deepseek_v4", tmp_path, o_groups=2)
    spec = describe(tmp_path, read_config(tmp_path))
    with pytest.raises(PlanError, match="the 2 groups of heads of layer 0 cannot be shared by 4 ranks; use 2 or less"):
        make_plan(spec, tensor=4)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("glm5_next_text", {}, r"\(glm5_next_text\) has layers of a kind .* linear_attention"),
        (
            "glm5_next_text",
            {"layer_types": ["indexed_attention"] * 4, "num_hidden_layers": 4},
            "several hidden states of a token side by side in a way",
        ),
    ],
)
def test_what_is_like_deepseek_v4_and_not_run_is_refused_by_name(
    name: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(AutoConfig.for_model(name, **changes).to_dict()))
    with pytest.raises(ModelError, match=why):
        read_config(tmp_path)
    if name not in FAMILIES:
        with pytest.raises(ModelError, match="model_type 'glm5_next_text' is not a family known here"):
            read_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow if each in SLOW else pytest.mark.soak) for each in SPECIAL]
)
def test_a_prompt_of_8192_tokens(name: str, tmp_path: Path) -> None:
    small = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    make(name, tmp_path, **small | {"max_position_embeddings": LONG} | SPECIAL[name])
    check(tmp_path, (((0, 0, 4096),), ((0, 4096, 4095), (1, 0, 40)), ((1, 40, 1), (0, 8191, 1))), (1, 1), "cpu")


@pytest.mark.parametrize("weights", [None, pytest.param("int8", marks=pytest.mark.slow)])
def test_latents_are_cached_once_for_all_heads(weights: str | None, tmp_path: Path) -> None:
    make("minicpm3", tmp_path, intermediate_size=128, q_lora_rank=32, kv_lora_rank=32, v_head_dim=8)  # groups of int8
    spec = describe(tmp_path, read_config(tmp_path), weights)
    for tensor in (1, 2):
        plan, shared = make_plan(spec, tensor=tensor), [Shared(tensor)]

        def body(world: ThreadGroup, plan: Plan = plan, stages: list[Shared] = shared) -> tuple[int, int]:
            runner = make_runners(tmp_path, plan, ["cpu"] * plan.world_size, "float32", weights, world, stages)
            runner.run(Batch((Span(0, 0, 3, True),), (5, 6, 7)))
            return runner.cache_bytes_per_token(0), runner.weight_bytes

        share = Share.even(tensor)
        held = spec.in_engine.rank_bytes(share, spec.vocabulary_share(tensor))
        planned = sum(layer.cache_bytes(1, BUILT_IN_ENGINE.cache_of(spec), share) for layer in spec.decoder)
        assert run_ranks(tensor, body) == [(planned, held)] * tensor
        assert planned == 4 * (32 + 8) * 4, "of four layers, in float32"
        assert planned < 4 * 8 * (16 + 8) * 4 / tensor, "keys and values of all heads"


@pytest.mark.parametrize(
    ("name", "split"), [("phi3", (1, 1)), pytest.param("minicpm3", (2, 2), marks=pytest.mark.slow)]
)
def test_answers_that_grow_long_are_computed_again_with_long_frequencies(
    name: str, split: tuple[int, int], tmp_path: Path
) -> None:
    """transformers chooses by the whole length, too: for every new token."""
    border, prompts = 24, [tokens(20, 0), tokens(40, 1), tokens(6, 2)]
    make(name, tmp_path, **long_rope(border))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = [list(prompt) for prompt in prompts]
    with torch.inference_mode():
        for answer in expected:
            for _ in range(12):
                answer.append(int(model(torch.tensor([answer])).logits[0, -1].argmax()))
    plan = make_plan(describe(tmp_path, read_config(tmp_path)), tensor=split[0], pipeline=split[1])
    limits = Limits(batch_tokens=16, cache_tokens=1000, sequences=4, context=200, short=short_context(model.config))
    scheduler, starts = Scheduler(limits, frozenset()), dict[int, list[int]]()
    for number, prompt in enumerate(prompts):
        scheduler.add(number, prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    sequences, stages = dict(scheduler.by_identity), [Shared(split[0]) for _ in range(split[1])]
    batches: list[Batch] = []

    def body(world: ThreadGroup) -> None:
        runner = make_runners(tmp_path, plan, ["cpu"] * plan.world_size, "float32", None, world, stages)
        for step in itertools.count():
            if world.rank == plan.driver:
                batches.append(scheduler.next_batch() or Batch())
            world.shared.barrier.wait()
            logits, batch = runner.run(batches[step]), batches[step]
            if not batch.spans:
                return
            if logits is not None:
                scheduler.complete(batch, logits.argmax(dim=1).tolist())
            world.shared.barrier.wait()

    run_ranks(plan.world_size, body)
    for span in (span for batch in batches for span in batch.spans if not span.seen):
        starts.setdefault(span.sequence, []).append(span.known)
    assert [sequences[number].tokens for number in range(3)] == expected
    assert starts == {0: [20, 25], 1: [40], 2: [6]}, "the first crosses the border, the second is long from its start"
