"""Plain weights that are quantised while they are loaded (`--weights`)."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from packed_models import check_cut, write
from safetensors.torch import load_file, save_file
from test_parity import plan_for
from test_step import check_packed
from tiny_models import make

from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ConfigError
from ferrule.model import read_model
from ferrule.model.on_load import bits_on_load

GGML = {"int8": gguf.GGMLQuantizationType.Q8_0, "int4": gguf.GGMLQuantizationType.Q4_0}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
LINEAR = "model.layers.0.mlp.up_proj.weight"


def standard(weight: torch.Tensor, name: str) -> torch.Tensor:
    """The numbers that GGUF's own format makes of ``weight``."""
    kind = GGML[name]
    return torch.from_numpy(dequantize(quantize(weight.float().numpy(), kind), kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_numbers_are_those_of_the_format_that_ggml_has(weights: str, dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(3)).to(dtype)
    weight[5, 32:64] = 0
    weight[6, 0], weight[6, 1], weight[6, 2:32] = -3, 3, 1
    directory = write(tmp_path, {LINEAR: weight}, {})
    with Checkpoint(directory, weights) as checkpoint:
        (found,) = checkpoint.read(LINEAR)
    assert torch.equal(found, standard(weight, weights))


@given(data=st.data())
def test_a_cut_is_that_part_of_the_whole(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("m")
    weight = torch.randn(40, 128, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    check_cut(write(directory, {LINEAR: weight}, {}), data, LINEAR, weights="int4")


def test_embedding_and_head_have_8_bits_and_what_chooses_or_shifts_stays() -> None:
    shapes = {
        "model.layers.3.mlp.down_proj.weight": 4,
        "model.layers.3.mlp.experts.7.up_proj.weight": 4,
        "model.layers.3.self_attn.q_proj.weight": 4,
        "model.embed_tokens.weight": 8,
        "lm_head.weight": 8,
        "model.layers.3.mlp.gate.weight": None,
        "model.layers.3.self_attn.q_proj.bias": None,
    }
    assert {name: bits_on_load("int4", name, (64, 64)) for name in shapes} == shapes
    assert bits_on_load("int4", "model.layers.3.mlp.down_proj.weight", (64, 48)) is None  # half a group
    assert bits_on_load("int4", "model.layers.3.input_layernorm.weight", (64,)) is None


@pytest.mark.parametrize("split", [(1, 1), (2, 1), (1, 2), pytest.param((2, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_logits_are_those_of_the_quantised_numbers(weights: str, split: tuple[int, int], tmp_path: Path) -> None:
    directory = make("llama", tmp_path / "m", torch.bfloat16, **SIZES)
    plain = {}
    for name, weight in load_file(directory / "model.safetensors").items():
        bits = bits_on_load(weights, name, weight.shape)
        plain[name] = weight.float() if bits is None else standard(weight, f"int{bits}")
    beside = make("llama", tmp_path / "m-plain", torch.float32, **SIZES)
    save_file(plain, beside / "model.safetensors")
    check_packed(directory, split, weights=weights)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_the_planner_counts_what_a_rank_holds(weights: str, family: str, tmp_path: Path) -> None:
    directory = make(family, tmp_path, torch.bfloat16, **SIZES)
    spec = describe(directory, read_config(directory), weights)
    told = read_model(str(directory), weights=weights)
    assert (told.decoder, told.embedding, told.head, told.bytes) == (
        spec.decoder, spec.embedding, spec.head, spec.bytes
    )  # fmt: skip
    assert spec.bytes < 0.6 * describe(directory, read_config(directory)).bytes
    assert spec.stored == f"{weights} in groups of 32"


def test_packed_weights_are_not_quantised_again(tmp_path: Path) -> None:
    parts = {"m.weight": torch.zeros(32, 32, dtype=torch.float8_e4m3fn), "m.weight_scale_inv": torch.ones(1, 1)}
    directory = write(tmp_path, parts, {"quant_method": "fp8"})
    with pytest.raises(ConfigError, match=r"is stored packed \(fp8\): leave --weights int4 out"):
        Checkpoint(directory, "int4")
    with pytest.raises(ConfigError, match="--weights 'int5' is not one of int8, int4"):
        EngineOptions("m", weights="int5")


def test_ranks_are_told_by_their_options(tmp_path: Path) -> None:
    directory = make("llama", tmp_path, torch.bfloat16, **SIZES)
    options = RankOptions(str(directory), "bfloat16", plan_for(directory, 1, 1), 1, 128, 4, 64, (), weights="int4")
    assert RankOptions.from_json(options.to_json()).weights == "int4"
