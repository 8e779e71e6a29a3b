"""The planner's description of a model must be what the engine then does with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from thread_group import Shared, ThreadGroup, run_ranks
from tiny_models import COMMON, CONFIGS, COUNTED, RECURRENT, SEEING, make
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig
from uneven_plans import alone, plan_of

from ferrule.engine.architectures import cuts_of, pipeline_refusal
from ferrule.engine.devices import open_device
from ferrule.engine.rank.model import ShardedModel, build
from ferrule.engine.rank.recurrent import is_mixer
from ferrule.engine.source import describe, read_config
from ferrule.errors import ModelError
from ferrule.model import ModelSpec, Share, read_model
from ferrule.model.count import count, expected
from ferrule.model.families.family import FAMILIES
from ferrule.model.families.shape import read_shape
from ferrule.model.storage import named_format
from ferrule.plan import BUILT_IN_ENGINE, Plan, make_plan
from ferrule.plan.cost import weight_bytes
from ferrule.plan.runtime import MIXER_CALLS, compressed_calls

TOKENS = 11
QUICK = ("llama", "qwen3_next")


class CountingGroup(ThreadGroup):
    """Remembers the collectives that a forward pass calls, with the numbers per token of each result."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: list[tuple[str, int]] = []

    def all_reduce(self, tensor: Any) -> Any:
        self.calls.append(("all_reduce", tensor.shape[-1]))
        return super().all_reduce(tensor)

    def all_gather(self, tensor: Any) -> Any:
        self.calls.append(("all_gather", tensor.shape[-1] * self.size))
        return super().all_gather(tensor)

    def gather(self, tensor: Any, root: int) -> Any:
        self.calls.append(("gather", tensor.shape[-1] * self.size))
        return super().gather(tensor, root)


def check(directory: Path) -> None:
    spec = describe(directory, read_config(directory))
    own = read_model(str(directory))
    assert own.decoder == spec.decoder, "the engine and the planner count differently"
    assert own.tensor_refusal == spec.tensor_refusal
    assert spec.bytes == sum(file.stat().st_size - header(file) for file in directory.glob("*.safetensors"))
    arithmetic = read_model(str(directory / "config.json"))
    assert (arithmetic.decoder, arithmetic.embedding, arithmetic.head, arithmetic.final) == (
        spec.decoder,
        spec.embedding,
        spec.head,
        spec.final,
    )
    for parts in (1, 2, 4):
        if spec.tensor_obstacle(parts) is None:
            check_rank(spec, directory, parts)
    if spec.expert_obstacle(2) is None:
        check_rank(spec, directory, 2, experts=True)
        check_only_experts(spec, directory)


def header(file: Path) -> int:
    with file.open("rb") as opened:
        return 8 + int.from_bytes(opened.read(8), "little")


def check_rank(spec: ModelSpec, directory: Path, parts: int, *, experts: bool = False) -> None:
    plan = make_plan(spec, tensor=parts, experts=experts)
    for model, group, cache, state in ran(directory, plan):
        share = Share.even(parts)
        assert model.weight_bytes == weight_bytes(spec, plan)[0] == spec.rank_bytes(share, spec.vocabulary_share(parts))
        policy = BUILT_IN_ENGINE.cache_of(spec)
        # transformers' modules keep latents once; of step programs, which do so twice, rank/test_step.py has a test.
        layers = [
            replace(one, attention=one.attention and replace(one.attention, latents_twice=False))
            for one in spec.decoder
        ]
        assert state == spec.state_bytes(policy), "no rank has less of it"
        assert cache * TOKENS == sum(layer.cache_bytes(TOKENS, policy, share) for layer in layers)
        calls = [*spec.first_collectives, *(call for layer in spec.decoder for call in layer.collectives)]
        padded = round(spec.vocabulary_share(parts) * spec.vocab_size) * parts
        if parts > 1:
            assert group.calls == [*((call.kind, call.width) for call in calls), ("gather", padded)]


def check_only_experts(spec: ModelSpec, directory: Path) -> None:
    """All but routed experts on every rank: one sum for each layer that has some."""
    plan = plan_of(spec, alone(1.0, 1.0), experts=True)
    sums = [layer.collectives[-1] for layer in spec.decoder if layer.experts]
    for (model, group, _, _), held in zip(ran(directory, plan), weight_bytes(spec, plan), strict=True):
        assert model.weight_bytes == held
        assert group.calls == [(each.kind, each.width) for each in sums]


def ran(directory: Path, plan: Plan) -> list[tuple[ShardedModel, CountingGroup, int, int]]:
    """By rank of a plan of one stage, after a prompt: the bytes it keeps per token, and beside that."""
    shared = Shared(plan.world_size)

    def body(world: ThreadGroup) -> tuple[ShardedModel, CountingGroup, int, int]:
        group: Any = CountingGroup(world.rank, shared)
        device = open_device("cpu", 1)
        with torch.inference_mode():
            model = build(directory, "float32", plan.shards[world.rank], group, device, lambda done, total: None)
            ids = torch.arange(3, 3 + TOKENS).unsqueeze(0)
            with model.cache.batch([(0, 0, TOKENS)]):
                model.forward(ids, torch.arange(TOKENS).unsqueeze(0), torch.tensor([TOKENS - 1]))
            kept = model.cache.sequences[0]
            return model, group, kept.bytes_per_token, kept.state.bytes

    return run_ranks(plan.world_size, body)


@pytest.mark.parametrize("name", QUICK)
def test_what_the_planner_counts_is_what_a_rank_holds_and_sends(name: str, tmp_path: Path) -> None:
    check(make(name, tmp_path))


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.tensor and name != "kimi_k2"])
def test_what_is_shared_out_is_what_transformers_and_the_engine_plan(name: str) -> None:
    config = AutoConfig.for_model(name, **(COMMON | (CONFIGS | COUNTED | RECURRENT | SEEING)[name]))
    by_family, by_plan = (read_shape(config.to_dict(), name, cuts) for cuts in (None, cuts_of(config)))
    storage = named_format("float32")
    told, meant = (count(name, each, expected(each, storage), "config", storage) for each in (by_family, by_plan))
    assert told.decoder == meant.decoder
    assert (told.pipeline_refusal is None) == (pipeline_refusal(config, name) is None)


def check_stages(directory: Path) -> None:
    """In 16 bits, which the states of a recurrent model do not have, nor all weights of some."""
    spec = describe(directory, read_config(directory), dtype="bfloat16").in_engine
    assert read_model(str(directory / "config.json"), weights="bfloat16").in_engine.decoder == spec.decoder
    plan, shared = make_plan(spec, pipeline=2), [Shared(1), Shared(1)]
    policy, device = BUILT_IN_ENGINE.cache_of(spec), open_device("cpu", 1)
    given = ids = torch.arange(3, 3 + TOKENS).unsqueeze(0)
    for shard, held, group in zip(plan.shards, weight_bytes(spec, plan), shared, strict=True):
        alone: Any = CountingGroup(0, group)
        with torch.inference_mode():
            model = build(directory, "bfloat16", shard, alone, device, lambda done, total: None)
            model.cache.tokens = ids
            with model.cache.batch([(0, 0, TOKENS)]):
                given = model.forward(given, torch.arange(TOKENS).unsqueeze(0), torch.tensor([TOKENS - 1]))
        assert model.weight_bytes == held
        layers = spec.decoder[shard.first_layer : shard.last_layer]
        kept = model.cache.sequences[0]
        assert kept.bytes_per_token == sum(layer.cache_bytes(1, policy) for layer in layers)
        assert kept.state.bytes == sum(layer.state_bytes(policy) for layer in layers)


STAGED = [name for name in RECURRENT if FAMILIES[name].stages]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in (*STAGED, "deepseek_v4")]
)
def test_states_are_counted_in_the_stage_that_keeps_them(name: str, tmp_path: Path) -> None:
    check_stages(make(name, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS | COUNTED | RECURRENT if name not in QUICK])
def test_the_same_for_every_architecture(name: str, tmp_path: Path) -> None:
    check(make(name, tmp_path))


class CallCount(TorchFunctionMode):
    """Calls from Python; what only asks for a shape is none."""

    calls = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += getattr(function, "__name__", "") not in ("__get__", "size", "dim", "is_floating_point")
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGED)
def test_calls_of_mixers_are_as_many_as_the_planner_counts(name: str, tmp_path: Path) -> None:
    alone: Any = CountingGroup(0, Shared(1))
    directory, counted = make(name, tmp_path), CallCount()
    plan = make_plan(describe(directory, read_config(directory)))
    kind = FAMILIES[name].mixer
    assert kind is not None
    with torch.inference_mode(), counted:
        model = build(directory, "float32", plan.shards[0], alone, open_device("cpu", 1), lambda done, total: None)
        mixer: Any = next(each for each in model.base.modules() if is_mixer(each))
        found, forward = list[int](), mixer.forward

        def told(*args: Any, **kwargs: Any) -> Any:
            before = counted.calls
            result = forward(*args, **kwargs)
            found.append(counted.calls - before)
            return result

        mixer.forward = told
        batches = [(1, 0, TOKENS), (1, TOKENS, 1), (2, 0, 200)]
        for sequence, seen, tokens in batches:
            with model.cache.batch([(sequence, seen, tokens)]):
                ids, places = torch.full((1, tokens), 5), torch.arange(seen, seen + tokens).unsqueeze(0)
                model.forward(ids, places, torch.tensor([tokens - 1]))
    assert found == pytest.approx([MIXER_CALLS[kind].of(tokens) for _, _, tokens in batches], rel=0.1)


@pytest.mark.slow
def test_calls_of_compressed_attention_are_as_many_as_the_planner_counts(tmp_path: Path) -> None:
    alone: Any = CountingGroup(0, Shared(1))
    directory, counted = make("deepseek_v4", tmp_path), CallCount()
    spec = describe(directory, read_config(directory))
    found = list[int]()
    with torch.inference_mode(), counted:
        model = build(directory, "float32", make_plan(spec).shards[0], alone, open_device("cpu", 1), lambda *_: None)

        def counting(layer: Any) -> None:
            whole, experts, inner = layer.forward, layer.mlp.forward, list[int]()

            def of_experts(*args: Any, **kwargs: Any) -> Any:
                before, result = counted.calls, experts(*args, **kwargs)
                inner.append(counted.calls - before)
                return result

            def of_layer(*args: Any, **kwargs: Any) -> Any:
                before, result = counted.calls, whole(*args, **kwargs)
                found.append(counted.calls - before - inner.pop())
                return result

            layer.forward, layer.mlp.forward = of_layer, of_experts

        for each in model.base.layers:  # type: ignore[union-attr]
            counting(each)
        for seen, new in ((0, 40), (40, 1)):
            with model.cache.batch([(1, seen, new)]):
                model.forward(torch.full((1, new), 5), torch.arange(seen, seen + new)[None], torch.tensor([new - 1]))
    attentions = [layer.attention for layer in spec.decoder if layer.attention]
    assert found == pytest.approx([compressed_calls(each) for each in attentions] * 2, rel=0.25)


BIASES = {"attention_bias": True, "mlp_bias": True}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("lfm2", {"conv_bias": True, "block_auto_adjust_ff_dim": True, "block_multiple_of": 16}),
    ("lfm2", {"layer_types": None, "full_attn_idxs": [1, 3], "tie_embedding": True}),
    ("qwen3_next", {"layer_types": None, "mlp_only_layers": [1], "attention_bias": True}),
    ("granitemoehybrid", {"num_local_experts": 0, "num_experts_per_tok": 0}),
    ("granitemoehybrid", {"mamba_proj_bias": True, "mamba_conv_bias": False, "attention_bias": True}),
    ("falcon_h1", BIASES | {"mamba_rms_norm": True, "projectors_bias": True, "mamba_proj_bias": True}),
    ("nemotron_h", {"moe_latent_size": 24, "use_bias": True, "use_conv_bias": False, "mlp_bias": True}),
    ("kimi_linear", {"q_lora_rank": 24, "attention_bias": True}),
]
"""Properties that no tiny model has, but others of its family."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_the_same_for_other_models_of_recurrent_families(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    check(make(name, tmp_path, **changes))


def test_a_model_that_repeats_a_class_of_transformers_is_run_as_that(tmp_path: Path) -> None:
    """Kimi K2's auto_map is DeepSeek-V3's class; no code of a model's own is run."""
    file = make("deepseek_v3", tmp_path) / "config.json"
    told = json.loads(file.read_text())
    repeated = {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    file.write_text(json.dumps(told | repeated))
    assert read_config(tmp_path).model_type == "deepseek_v3"
    file.write_text(json.dumps(told | repeated | {"model_type": "another_k3"}))
    with pytest.raises(ModelError, match="model_type 'another_k3' is not a family known here"):
        read_config(tmp_path)
