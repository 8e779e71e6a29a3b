"""Models cut over ranks must give what transformers gives in one process.

Ranks are threads here (see thread_group): the same sharding, loading, attention and pipeline code as in a served
model, without the cost of processes. tests/e2e runs real processes over the native fabric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from thread_group import Shared, ThreadGroup, run_ranks
from tiny_models import CONFIGS, REQUIRED, long_rope, make
from transformers import AutoModelForCausalLM

from ferrule.engine.devices import open_device
from ferrule.engine.rank.model import ShardedModel, build
from ferrule.engine.source import describe, read_config
from ferrule.errors import ModelError, PlanError
from ferrule.plan import Plan, make_plan

QUICK = ("llama", "gpt_oss", "phi3")
SPLITS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]
TOKENS = 20
PIECES = ((0, 13), (13, 19), (19, 20))
"""The prompt goes in as a long piece, a piece with a past, and a single token: each takes another path."""


def run_split(directory: Path, plan: Plan, body: Callable[[ShardedModel, ThreadGroup], Any]) -> list[Any]:
    """``body`` on every rank of ``plan`` with its part of the model; results in rank order."""
    stages = [Shared(stage.width) for stage in plan.stages]

    def rank(world: ThreadGroup) -> Any:
        shard = plan.shards[world.rank]
        group: Any = ThreadGroup(shard.part, stages[shard.stage])
        device = open_device("cpu", 1)
        with torch.inference_mode():
            return body(build(directory, "float32", shard, group, device, lambda done, total: None), world)

    return run_ranks(plan.world_size, rank)


def forward(model: ShardedModel, world: ThreadGroup, plan: Plan, ids: torch.Tensor, first: int) -> torch.Tensor | None:
    """Logits of every token of ``ids`` (1, n), which follow ``first`` earlier ones; None on earlier stages."""
    count = ids.shape[1]
    inputs = ids
    if not model.shard.has_embedding:
        inputs = world.recv(torch.empty(1, count, model.hidden_size), plan.source(world.rank))
    model.cache.tokens = ids  # which every stage knows
    with model.cache.batch([(7, first, count)]):
        out = model.forward(inputs, torch.arange(first, first + count).unsqueeze(0), torch.arange(count))
    if model.shard.has_head:
        return out
    for rank in plan.receivers(world.rank):
        world.send(out, rank)
    return None


def plan_for(directory: Path, tensor: int, pipeline: int) -> Plan:
    return make_plan(describe(directory, read_config(directory)), tensor=tensor, pipeline=pipeline)


def check_logits(name: str, directory: Path, tensor: int, pipeline: int) -> None:
    check_plan(name, directory, plan_for(directory, tensor, pipeline))


def check_plan(name: str, directory: Path, plan: Plan) -> None:
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()(ids).logits[0]

    def body(model: ShardedModel, world: ThreadGroup) -> tuple[torch.Tensor, torch.Tensor] | None:
        states: list[torch.Tensor] = []
        if model.shard.has_head:  # what enters the output layer, on every rank of the stage
            model.model.get_output_embeddings().register_forward_pre_hook(lambda _, given: states.append(given[0]))
        pieces = [forward(model, world, plan, ids[:, a:b], a) for a, b in PIECES]
        return None if pieces[0] is None else (torch.cat([p for p in pieces if p is not None]), torch.cat(states, 1))

    results = [result for result in run_split(directory, plan, body) if result is not None]
    assert len(results) == plan.stages[-1].width
    if plan.stages[-1].shares[0].width < 1.0:
        assert {logits.shape for logits, _ in results[1:]} <= {(TOKENS, 0)}, "only the driver gets logits"
    for _, states in results:
        assert torch.equal(states, results[0][1]), "the ranks of one stage disagree"
    assert (results[0][0] - expected).abs().max() < 1e-4, name


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", QUICK)
def test_logits_equal_those_of_one_process(name: str, split: tuple[int, int], tmp_path: Path) -> None:
    check_logits(name, make(name, tmp_path), *split)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in QUICK])
def test_logits_equal_those_of_one_process_for_every_architecture(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    for split in SPLITS:
        if split[1] == 1 or describe(tmp_path, read_config(tmp_path)).pipeline_refusal is None:
            check_logits(name, tmp_path, *split)


@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3", "mimo_v2_flash"])
def test_key_value_heads_fewer_than_ranks_are_held_by_several(name: str, tmp_path: Path) -> None:
    check_logits(name, make(name, tmp_path, num_key_value_heads=2), 4, 1)


def test_a_model_that_scales_its_embedding_does_so_on_one_stage_only(tmp_path: Path) -> None:
    check_logits("granite", make("granite", tmp_path), 1, 2)


def test_a_model_stored_in_several_files_loads_the_same(tmp_path: Path) -> None:
    make("qwen3_moe", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    check_logits("qwen3_moe", tmp_path, 2, 2)


def greedy(directory: Path, tensor: int, pipeline: int, prompt: list[int], count: int) -> list[int]:
    plan = plan_for(directory, tensor, pipeline)

    def body(model: ShardedModel, world: ThreadGroup) -> list[int]:
        tokens = list(prompt)
        logits = forward(model, world, plan, torch.tensor([tokens]), 0)
        for _ in range(count):
            # Without a scheduler the driver tells the others its choice by the side channel of this test.
            if logits is not None and world.rank == plan.driver:
                choice = int(logits[-1].argmax())
                for other in {*range(plan.world_size)} - {world.rank}:
                    world.send(torch.tensor([choice]), other)
            else:
                choice = int(world.recv(torch.empty(1, dtype=torch.long), plan.driver))
            tokens.append(choice)
            logits = forward(model, world, plan, torch.tensor([[choice]]), len(tokens) - 1)
        return tokens[len(prompt) :]

    return run_split(directory, plan, body)[plan.driver]


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUIRED)
def test_greedy_tokens_equal_those_of_one_process(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    prompt = [5, 17, 99, 42, 8, 77]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)[0, len(prompt) :].tolist()
    assert len(expected) == 64
    assert greedy(tmp_path, 2, 1, prompt, 64) == expected
    assert greedy(tmp_path, 1, 2, prompt, 64) == expected


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def load_only(directory: Path, tensor: int) -> None:
    run_split(directory, plan_for(directory, tensor, 1), lambda model, world: None)


def test_weights_missing_from_the_checkpoint_are_named(tmp_path: Path) -> None:
    change_weights(make("llama", tmp_path), lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"no weights for model\.layers\.2\.mlp\.up_proj\.weight"):
        load_only(tmp_path, 2)


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_tensor_of_another_shape_than_the_config_says_is_named(tensor: int, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    change_weights(make("llama", tmp_path), lambda tensors: tensors.update({name: torch.zeros(64, 90)}))
    with pytest.raises(ModelError, match=rf"{re.escape(name)} .* does not fit"):
        load_only(tmp_path, tensor)


def test_decoders_made_encoders_are_refused(tmp_path: Path) -> None:
    """As EmbeddingGemma is; not only where its modules say so."""
    for name, how in (("gemma3_text", {"use_bidirectional_attention": True}), ("qwen3", {"is_causal": False})):
        with pytest.raises(ModelError, match=r"later tokens too, as its config\.json says"):
            load_only(make(name, tmp_path / name, **how), 1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("doge", "makes its own attention mask"),
        ("hrm_text", "more than once per token"),
        ("diffllama", "more than once per token"),
        ("bert", "looks at later tokens too"),
    ],
)
def test_attention_that_the_cache_would_get_wrong_is_refused(name: str, why: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    with pytest.raises(ModelError, match=why):
        check_logits(name, tmp_path, 1, 1)


@pytest.mark.parametrize("split", [(2, 1), (4, 1), (1, 2)])
def test_norms_with_weights_for_each_head_are_cut_with_the_heads(split: tuple[int, int], tmp_path: Path) -> None:
    check_logits("cohere", make("cohere", tmp_path, num_key_value_heads=2), *split)


@pytest.mark.parametrize("name", ["phimoe", "qwen2_moe"])
def test_a_window_that_only_the_mask_is_told_of_holds(name: str, tmp_path: Path) -> None:
    check_logits(name, make(name, tmp_path), 1, 1)


@pytest.mark.parametrize("border", [TOKENS, 12])
def test_rotary_frequencies_are_those_of_the_whole_length(border: int, tmp_path: Path) -> None:
    make("phi3", tmp_path, **long_rope(border))
    assert describe(tmp_path, read_config(tmp_path)).max_context == 256
    for split in ((2, 1), (1, 2)):
        check_logits("phi3", tmp_path, *split)


@pytest.mark.parametrize(
    ("changes", "split", "why"),
    [
        ({"activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]}, (2, 1), "largest of all activations"),
        ({}, (1, 2), "widens the hidden states"),
        ({"altup_num_inputs": 1}, (1, 2), "an embedding of its own"),
    ],
)
def test_what_a_plan_does_not_know_is_refused(
    changes: dict[str, Any], split: tuple[int, int], why: str, tmp_path: Path
) -> None:
    make("gemma3n_text", tmp_path)
    config = read_config(tmp_path)
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(PlanError, match=why):
        make_plan(describe(tmp_path, config), tensor=split[0], pipeline=split[1])


def test_layers_that_need_the_choice_of_earlier_ones_are_not_cut_into_stages(tmp_path: Path) -> None:
    make("glm_moe_dsa", tmp_path)
    with pytest.raises(
        PlanError, match="--pp 2: layers of GlmMoeDsaForCausalLM attend to the tokens that earlier ones"
    ):
        plan_for(tmp_path, 1, 2)


def test_an_indexer_of_another_kind_is_refused(tmp_path: Path) -> None:
    make("axk2", tmp_path)
    with pytest.raises(ModelError, match="Indexer chooses tokens in its own way"):
        check_logits("axk2", tmp_path, 1, 1)


def test_layers_with_different_numbers_of_heads_are_refused(tmp_path: Path) -> None:
    text = {"model_type": "gemma4_text", "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(text))
    with pytest.raises(ModelError, match="differ in their numbers of heads"):
        read_config(tmp_path)


def test_a_layer_that_keeps_nothing_in_the_cache_is_refused(tmp_path: Path) -> None:
    def body(model: ShardedModel, world: ThreadGroup) -> None:
        forward(model, world, plan, torch.tensor([[5, 6]]), 0)
        model.check_trial(7)
        del model.cache.sequences[7].keys[model.shard.first_layer]
        model.check_trial(7)

    plan = plan_for(make("llama", tmp_path), 1, 2)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM computes attention in its own way in layer [02]"):
        run_split(tmp_path, plan, body)


def test_layers_that_are_no_plain_stack_are_not_cut_into_stages(tmp_path: Path) -> None:
    make("hrm_text", tmp_path)
    with pytest.raises(PlanError, match="no pipeline plan that fits HrmTextForCausalLM"):
        check_logits("hrm_text", tmp_path, 1, 2)


@pytest.mark.parametrize("name", ["gpt2", "opt", "bloom"])
def test_an_architecture_without_a_plan_is_refused_by_name(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    small = {"gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4}, "bloom": {"n_layer": 2, "hidden_size": 32, "n_head": 4}}
    config = AutoConfig.for_model(name, vocab_size=64, **small.get(name, {"num_hidden_layers": 2, "hidden_size": 32}))
    if name == "opt":
        config.num_attention_heads, config.word_embed_proj_dim, config.ffn_dim = 4, 32, 64
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for split, kind in (((2, 1), "tensor parallel"), ((1, 2), "pipeline")):
        with pytest.raises(PlanError, match=rf"no {kind} plan for \w+(LMHeadModel|ForCausalLM)"):
            plan_for(tmp_path, *split)
