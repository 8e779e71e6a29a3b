"""Published models: sizes that their makers, or the files on the hub, tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.model import BUILT_IN, COMPACT, AttentionSpec, ExpertsSpec, Share, kept_in, known_models, read_model
from ferrule.plan.runtime import BUILT_IN_ENGINE, ON_ACCELERATORS


@pytest.mark.parametrize(("name", "file"), known_models().items())
def test_parameters_are_those_that_the_makers_publish(name: str, file: Path) -> None:
    known, spec = json.loads(file.read_text()), read_model(name)
    assert spec.parameters == pytest.approx(known["parameters"], rel=known.get("parameters_within", 0.01))
    if "active_parameters" in known:
        assert spec.active_parameters == pytest.approx(known["active_parameters"], rel=0.02)
    assert (spec.active_parameters < spec.parameters) == any(layer.experts for layer in spec.decoder)
    assert known["source"].startswith(f"https://huggingface.co/{known['hub_id']}")


@pytest.mark.parametrize(
    ("name", "weights", "gigabytes"),
    [  # sizes of the files on the hub, in 10^9 bytes
        ("llama-3.2-3b", None, 6.43),
        ("llama-3.3-70b", "float16", 141.1),
        ("qwen3-235b-a22b", None, 470.2),
        ("qwen3-235b-a22b", "mlx-8bit", 249.8),
        ("qwen3-235b-a22b", "mlx-4bit", 132.2),
        ("qwen3-235b-a22b", "gptq-int4", 124.5),
        ("gpt-oss-120b", None, 65.2),
        ("mixtral-8x7b", None, 93.4),
        ("lfm2-1.2b", None, 2.34),
    ],
)
def test_bytes_are_those_of_the_files(name: str, weights: str | None, gigabytes: float) -> None:
    assert read_model(name, weights=weights).bytes / 1e9 == pytest.approx(gigabytes, rel=0.002)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.3-70b", 80 * 2 * 8 * 128 * 2),
        ("llama-3.2-3b", 28 * 2 * 8 * 128 * 2),
        ("qwen3-235b-a22b", 94 * 2 * 4 * 128 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("qwen3-next-80b-a3b", 12 * 2 * 2 * 256 * 2),
        ("kimi-linear-48b-a3b", 7 * (512 + 64) * 2),
        ("granite-4.0-h-small", 4 * 2 * 8 * 128 * 2),
        ("nemotron-h-8b", 4 * 2 * 8 * 128 * 2),
        ("nemotron-3-nano-30b-a3b", 6 * 2 * 2 * 128 * 2),
        ("lfm2-1.2b", 6 * 2 * 8 * 64 * 2),
        ("deepseek-v4-flash", 21 * (512 + 128) // 4 * 2 + 20 * 512 // 128 * 2),
    ],
)
def test_the_cache_takes_what_the_papers_say(name: str, per_token: int) -> None:
    spec = read_model(name)
    assert spec.cache_bytes(1000) == 1000 * per_token


def test_compressed_attention_keeps_its_window_and_reads_what_is_chosen() -> None:
    spec = read_model("deepseek-v4-flash")
    sparse = 2 * 2 * 4 * 2 * (512 + 128)  # values and logits of two windows of 4 tokens, in two halves
    assert spec.recurrent
    assert spec.state_bytes() == 2 * (43 * 127 * 512 + 21 * sparse + 20 * 2 * 128 * 512)
    assert spec.hidden_bytes == 4 * 4096 * 2, "to the next stage go all hidden states of a token"
    window, chosen, heavy = (spec.decoder[index].attention for index in (1, 2, 3))
    assert window is not None
    assert chosen is not None
    assert heavy is not None
    assert [each.read_bytes(1 << 20) for each in (window, chosen, heavy)] == [
        0,
        2 * (512 * 512 + 128 * (1 << 18)),
        2 * 512 * (1 << 13),
    ]
    attended = 2 * 64 * 2 * 512
    assert window.flops(1, 1 << 20) == attended * 128
    assert chosen.flops(1, (1 << 20) - 1) == attended * (128 + 512) + 2 * 64 * 128 * (1 << 18)
    assert heavy.flops(1, (1 << 20) - 1) == attended * (128 + (1 << 13))


@pytest.mark.parametrize(
    ("name", "layers", "channels", "kernel", "state"),
    [
        ("qwen3-next-80b-a3b", 36, (16 + 16 + 32) * 128, 4, 32 * 128 * 128),
        ("kimi-linear-48b-a3b", 20, 3 * 32 * 128, 4, 32 * 128 * 128),
        ("granite-4.0-h-small", 36, 128 * 64 + 2 * 128, 4, 128 * 64 * 128),
        ("nemotron-h-8b", 24, 128 * 64 + 2 * 8 * 128, 4, 128 * 64 * 128),
        ("nemotron-3-nano-30b-a3b", 23, 64 * 64 + 2 * 8 * 128, 4, 64 * 64 * 128),
        ("lfm2-1.2b", 10, 2048, 3, 0),
    ],
)
def test_a_state_is_kept_once_per_sequence(name: str, layers: int, channels: int, kernel: int, state: int) -> None:
    """Inputs of convolutions in 16 bits, states in 32, of the layers that are no attention."""
    spec = read_model(name)
    assert spec.recurrent
    assert spec.state_bytes() == layers * (channels * kernel * 2 + state * 4)
    layer = next(each for each in spec.decoder if each.mixer)
    assert layer.cache_bytes(5000) == 0
    assert layer.cache_read_bytes(5000) == 2 * layer.state_bytes() == layer.cache_read_bytes(1, share=Share.even(2))
    assert layer.recurrence_flops(3) == 3 * layer.recurrence_flops(1)
    assert layer.recurrence_flops(1) in (5 * state, 7 * state)


def test_windows_bound_the_cache_of_their_layers_only() -> None:
    spec = read_model("gpt-oss-120b")  # every second layer sees 128 tokens
    layer = 2 * 8 * 64 * 2
    assert spec.cache_bytes(100) == 36 * layer * 100
    assert spec.cache_bytes(1000) == 18 * layer * 1000 + 18 * layer * 128
    assert spec.cache_bytes(1000, BUILT_IN) == 36 * layer * 1000


def test_latents_are_shared_out_to_no_rank_but_heads_are() -> None:
    layer = read_model("deepseek-v3").decoder[10]
    half = Share.even(2)
    assert layer.cache_bytes(10, COMPACT, half) == layer.cache_bytes(10, COMPACT)
    # A step program keeps what stands for the value twice.
    assert layer.cache_bytes(10, BUILT_IN, half) == layer.cache_bytes(10, BUILT_IN) == 2 * 10 * (576 + 512)
    modules = replace(layer, attention=replace(layer.attention, latents_twice=False))
    assert modules.cache_bytes(10, BUILT_IN, half) == modules.cache_bytes(10, BUILT_IN) == 2 * 10 * 576


def test_an_indexer_keeps_keys_for_all_tokens_and_few_of_them_are_attended_to() -> None:
    latent = AttentionSpec("latent", 128, 128, 192, 128, latent_width=576, latent_rank=512)
    sparse = replace(latent, most=2048, index_heads=64, index_width=128)
    assert sparse.cache_bytes(5000) == 2 * 5000 * (576 + 128)
    assert sparse.read_bytes(2000) == 2 * 2000 * (576 + 128)
    assert sparse.read_bytes(5000) == 2 * (5000 * 128 + 2048 * 576)
    assert sparse.flops(1, 4999) == 2 * (128 * (192 + 128) * 2048 + 64 * 128 * 5000)
    assert sparse.flops(2048) == latent.flops(2048) + 2 * 64 * 128 * 2048 * 2049 // 2


def test_dense_layers_and_shared_experts_are_where_they_are_said_to_be() -> None:
    spec = read_model("deepseek-v3")
    assert [layer.experts is None for layer in spec.decoder] == [True] * 3 + [False] * 58
    sparse, dense = spec.decoder[3], spec.decoder[2]
    assert sparse.experts == ExpertsSpec(count=256, per_token=8, width=2048)
    assert (sparse.weights.routed.parameters, sparse.weights.shared.parameters) == (256 * 44_040_192, 44_040_192)
    assert dense.weights.dense.parameters == 3 * 7168 * 18432
    assert [each.kind for each in sparse.collectives] == ["all_reduce"] * 3  # attention, experts, shared expert
    assert len(dense.collectives) == 2


def test_a_model_that_does_not_divide_says_what_does_not() -> None:
    spec = read_model("llama-3.2-3b")
    assert spec.tensor_obstacle(1) is spec.tensor_obstacle(8) is None
    assert spec.tensor_obstacle(5) is None
    assert spec.tensor_obstacle(25) == "24 attention heads cannot be shared by 25 ranks; use 24 or less"
    assert "no tensor parallel plan for DbrxForCausalLM" in (read_model("dbrx").tensor_obstacle(2) or "")


@given(st.integers(1, 512), st.integers(1, 16), st.integers(0, 300))
def test_experts_touched_grow_with_the_batch_up_to_all(count: int, per_token: int, tokens: int) -> None:
    experts = ExpertsSpec(count, min(count, per_token), 1)
    touched = experts.touched(tokens)
    assert touched <= experts.touched(tokens + 1) <= count
    assert touched <= tokens * experts.per_token + 1e-9
    assert experts.touched(0) == 0
    assert experts.touched(1) == pytest.approx(experts.per_token)


SPECS = {name: read_model(name) for name in ("gpt-oss-120b", "qwen3-30b-a3b", "deepseek-v3", "gemma-3-27b")}


@given(st.sampled_from(sorted(SPECS)), st.integers(1, 3000), st.integers(0, 3000))
def test_a_prompt_costs_what_its_tokens_cost_one_by_one(name: str, tokens: int, past: int) -> None:
    for layer in SPECS[name].decoder[:6:5]:
        assert layer.flops(tokens + 1, past) == layer.flops(tokens, past) + layer.flops(1, past + tokens)
        assert layer.flops(1, past + tokens) >= layer.flops(1, past)


@given(st.sampled_from(sorted(SPECS)), st.integers(1, 64), st.integers(1, 4096))
def test_what_ranks_hold_is_together_at_least_the_whole(name: str, parts: int, tokens: int) -> None:
    spec = SPECS[name]
    share = Share.even(parts)
    each = spec.rank_bytes(share, spec.vocabulary_share(parts))
    assert spec.bytes / parts - 64 * spec.layers <= each <= spec.bytes
    layer = spec.decoder[-1]
    assert parts * layer.cache_bytes(tokens, COMPACT, share) >= layer.cache_bytes(tokens) - 1e-6


@given(st.sampled_from(sorted(SPECS)), st.data())
def test_stages_hold_together_what_one_rank_does(name: str, data: st.DataObject) -> None:
    spec = SPECS[name]
    cut = data.draw(st.integers(1, spec.layers - 1))
    ends = spec.rank_bytes(last_layer=cut) + spec.rank_bytes(first_layer=cut)
    assert ends - spec.rank_bytes() == (spec.head.bytes if spec.tied else 0)
    assert spec.rank_bytes() == spec.bytes


def test_quantised_keys_and_values_are_counted_as_the_engine_keeps_and_reads_them() -> None:
    plain = read_model("llama-3.2-3b")
    eight, four = kept_in(plain, "int8"), kept_in(plain, "int4")
    own, gpus = BUILT_IN_ENGINE.cache_of(eight), ON_ACCELERATORS.cache_of(eight)
    numbers = plain.cache_bytes(1000, BUILT_IN)
    assert eight.cache_bytes(1000, own) == eight.cache_bytes(1000, gpus) == numbers * 8.5 / 16
    assert four.cache_bytes(1000, BUILT_IN_ENGINE.cache_of(four)) == numbers * 4.5 / 16
    layer, read = eight.decoder[0], plain.decoder[0].cache_read_bytes(1000, BUILT_IN)
    assert layer.cache_read_bytes(1000, own) == read * 8.5 / 16
    assert layer.cache_read_bytes(1000, gpus) == read * (8.5 / 16 + 2), "numbers are written, and read again"
    modules = replace(layer, program_operations=None)
    assert modules.cache_read_bytes(1000, own) == layer.cache_read_bytes(1000, gpus)
    assert own.row_bytes(80) == own.row_bytes(96) == 3 * 34  # whole groups
