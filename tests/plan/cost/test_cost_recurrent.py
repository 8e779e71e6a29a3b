"""Recurrent layers in plans: a state of each sequence on every rank, however long, read and written by a token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cost_predictor import PLAIN, ask, cluster, pipeline, tensor

from ferrule.errors import ConfigError, PlanError
from ferrule.model import LayerSpec, ModelSpec, Share, read_model
from ferrule.plan import BUILT_IN_ENGINE, Runtime, Workload, make_plan, predict
from ferrule.plan.cost import largest_context, memory_of
from ferrule.plan.obstacle import obstacle_of

MODELS = {
    name: read_model(name)
    for name in ("qwen3-next-80b-a3b", "granite-4.0-h-small", "nemotron-h-8b", "lfm2-1.2b", "kimi-linear-48b-a3b")
}
QWEN, GRANITE = MODELS["qwen3-next-80b-a3b"], MODELS["granite-4.0-h-small"]
POLICY = BUILT_IN_ENGINE.cache_of(QWEN)


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 1 << 18), st.integers(1, 64), st.data())
def test_what_must_be_free_lets_the_engine_run_all_sequences(
    name: str, context: int, concurrency: int, data: st.DataObject
) -> None:
    """On a rank with any of the layers: the engine's own functions, of what the planner asks for."""
    model = MODELS[name]
    first = data.draw(st.integers(0, model.layers - 1))
    layers = model.decoder[first : data.draw(st.integers(first + 1, model.layers))]
    per_token, state = (sum(layer.cache_bytes(1, POLICY) for layer in layers), sum(map(state_of, layers)))
    room = BUILT_IN_ENGINE.cache_room(model, context, concurrency)
    free = 1.001 * (per_token * context * room.keys + state * room.state) + 2 * per_token
    sequences = BUILT_IN_ENGINE.sequences(free, state, BUILT_IN_ENGINE.max_sequences)
    assert sequences >= concurrency
    if per_token:
        assert BUILT_IN_ENGINE.cache_tokens(free, per_token, sequences, state) >= context * concurrency


def state_of(layer: LayerSpec) -> float:
    return layer.state_bytes(POLICY)


def test_a_state_takes_room_once_for_each_sequence_and_on_each_rank() -> None:
    work = Workload(context=1000, concurrency=3)
    (one,) = memory_of(ask(cluster(1), work, model=QWEN), pipeline(1, QWEN.layers))
    assert one.cache == 3 * (QWEN.cache_bytes(1000) + QWEN.state_bytes())
    for part in memory_of(ask(cluster(2), work, model=QWEN), tensor(2, QWEN.layers)):
        assert part.cache == 3 * (QWEN.cache_bytes(1000) / 2 + QWEN.state_bytes())
    parts = memory_of(ask(cluster(2), work, model=QWEN), pipeline(2, QWEN.layers))
    assert sum(part.cache for part in parts) == one.cache


@pytest.mark.parametrize("runtime", [PLAIN, BUILT_IN_ENGINE])
def test_states_of_more_sequences_leave_room_for_less_context(runtime: Runtime) -> None:
    found, model = [], replace(GRANITE, max_context=1 << 22)
    for concurrency in (1, 4, 16):
        work = Workload(context=16, concurrency=concurrency)
        question = ask(cluster(1, memory=68 << 30), work, runtime=runtime, model=model)
        found.append(largest_context(question, pipeline(1, GRANITE.layers)) * concurrency)
    assert found[0] > 0
    assert found == sorted(found, reverse=True)
    none = replace(model, decoder=tuple(replace(layer, mixer=None) for layer in model.decoder))
    question = ask(cluster(1, memory=68 << 30), Workload(context=16, concurrency=16), runtime=runtime, model=none)
    assert largest_context(question, pipeline(1, GRANITE.layers)) * 16 > found[-1]


def test_a_token_reads_and_writes_the_state_and_no_rank_less_of_it() -> None:
    """Seconds that states take more than the same layers without, at 200 GB/s."""
    none = replace(QWEN, decoder=tuple(replace(layer, mixer=None) for layer in QWEN.decoder))
    state = 2 * QWEN.state_bytes() / 200e9

    def cache(model: ModelSpec, parts: int, sequences: int) -> float:
        question = ask(cluster(parts), Workload(context=64, prompt=1, concurrency=sequences), model=model)
        terms = predict(question, tensor(parts, QWEN.layers)).step_terms
        return sum(term.seconds for term in terms if term.kind == "cache")

    for parts in (1, 2):
        for sequences in (1, 5):
            assert cache(QWEN, parts, sequences) - cache(none, parts, sequences) == pytest.approx(sequences * state)


def test_tensor_parallelism_shares_out_what_plans_of_transformers_do() -> None:
    half = Share.even(2)
    mixed = {name: next(layer for layer in model.decoder if layer.mixer) for name, model in MODELS.items()}
    for name, layer in mixed.items():
        held, all_of_it = layer.weights.mixer.held(half.query), layer.weights.mixer.bytes
        assert held == all_of_it if name != "qwen3-next-80b-a3b" else held < 0.51 * all_of_it
    assert [each.width for each in mixed["qwen3-next-80b-a3b"].collectives] == [12288, 64, 2048, 2048, 2048]
    assert all(layer.weights.attention.held(0.5) == layer.weights.attention.bytes for layer in GRANITE.decoder)
    dense = MODELS["nemotron-h-8b"]
    ends = dense.embedding.bytes + dense.head.bytes
    assert dense.rank_bytes(half, dense.vocabulary_share(2)) == dense.bytes - ends // 2


FALCON = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "mamba_n_heads": 4,
    "mamba_d_ssm": 64,
    "vocab_size": 131,
}


def test_what_the_engine_does_not_split_is_not_planned(tmp_path: Path) -> None:
    """With its reason: tests/engine/test_model_spec.py compares these."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(FALCON))
    falcon = read_model(str(file))
    assert all(layer.mixer and layer.attention for layer in falcon.decoder)
    for split, flag, kind in (("tensor", "tp", "tensor parallel"), ("pipeline", "pp", "pipeline")):
        with pytest.raises(PlanError, match=f"--{flag} 2: transformers has no {kind} plan for FalconH1ForCausalLM"):
            make_plan(falcon, **{split: 2})
    assert obstacle_of(falcon, tensor(2, 4)) == falcon.tensor_refusal
    assert obstacle_of(falcon, pipeline(2, 4)) == falcon.pipeline_refusal
    assert obstacle_of(QWEN, make_plan(QWEN, tensor=2)) is None
    heads = QWEN.query_heads
    assert (QWEN.tensor_obstacle(heads + 1) or "").startswith(f"{heads} attention heads cannot be shared by")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["hybrid"] * 3}, "layer_types has 3 entries for 4 layers"),
        ({"layer_types": ["hybrid", "hybrid", "hybrid", "rwkv"]}, "layer_types has 'rwkv'"),
        ({"layer_types": "hybrid"}, "layer_types is hybrid, which is no list"),
        ({"mamba_n_heads": 0}, "mamba_n_heads is 0"),
        ({"model_type": "lfm2", "full_attn_idxs": 2}, "full_attn_idxs is 2, which is no list"),
        ({"model_type": "lfm2", "block_ffn_dim_multiplier": "2"}, "block_ffn_dim_multiplier is 2"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X*"}, "hybrid_override_pattern has 'X'"),
        ({"model_type": "kimi_linear", "linear_attn_config": {"num_heads": -1}}, "linear_num_heads is -1"),
    ],
)
def test_a_configuration_that_cannot_be_is_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(FALCON | changes))
    with pytest.raises(ConfigError, match=message):
        read_model(str(file))
