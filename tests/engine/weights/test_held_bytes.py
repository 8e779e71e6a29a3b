"""The planner's bytes are the engine's, exactly: of every format, and of every way to split a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

import gguf
import gguf_models
import numpy as np
import pytest
import test_format_awq as awq
import test_format_bitsandbytes as bitsandbytes
import test_format_compressed_tensors as compressed
import test_format_fp8 as fp8
import test_format_gptq as gptq
import test_format_mlx as mlx
import test_format_mxfp4 as mxfp4
import test_gguf_models
import torch
from gguf_models import random_blocks
from held import held_bytes
from hypothesis import given
from hypothesis import strategies as st
from packed_models import Quantised, packed_model
from test_format_splits import in_products
from test_parity import plan_for
from tiny_models import CONFIGS, COUNTED, RECURRENT, make

from ferrule._native import Matrix
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.formats.gguf_blocks import BLOCK_TYPES
from ferrule.errors import PlanError
from ferrule.model import read_model
from ferrule.model.packing import Packing, fitting_group, matrix_bytes
from ferrule.plan.cost import weight_bytes

SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2)]
Quantise = Callable[[torch.Tensor], Quantised]
LINEAR: dict[str, tuple[dict[str, Any], Quantise]] = {
    **{
        f"gptq {bits} bits": (gptq.told(bits), lambda weight, bits=bits: gptq.quantise(weight, bits))
        for bits in (2, 3, 4, 8)
    },
    "gptq symmetric": (gptq.told(symmetric=True), lambda weight: gptq.quantise(weight, symmetric=True)),
    "gptq by row": (gptq.told(group=-1), lambda weight: gptq.quantise(weight, group=-1)),
    "awq": (awq.TOLD, awq.quantise),
    **{
        f"compressed-tensors {kind}": (
            compressed.told(kind),
            lambda weight, kind=kind: compressed.quantise(weight, kind),
        )
        for kind in compressed.KINDS
    },
    "fp8": (fp8.told(32, 32), fp8.quantise),
    "bitsandbytes nf4": (bitsandbytes.told(), bitsandbytes.quantise),
    "bitsandbytes fp4": (bitsandbytes.told("fp4"), lambda weight: bitsandbytes.quantise(weight, "fp4")),
    "bitsandbytes nf4 nested": (bitsandbytes.told(nested=True), lambda w: bitsandbytes.quantise(w, nested=True)),
    "bitsandbytes, 8 bits": (bitsandbytes.EIGHT, bitsandbytes.quantise8),
}
"""Formats of the products in layers."""
MLX = [("affine", bits, 32) for bits in (2, 3, 4, 5, 6, 8)] + [("affine", 4, 64), *mlx.FLOATS]


def quick(names: Iterable[str], *chosen: str) -> list[Any]:
    """All but those ``chosen`` are slow."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


def check(directory: Path, *splits: tuple[int, int], weights: str | None = None, told_by_config: bool = True) -> None:
    """At each split every rank holds what `describe` says, and what the planner says of the files, without torch."""
    spec = describe(directory, read_config(directory), weights)
    alone = [read_model(str(directory), weights=weights)]
    if directory.is_dir() and told_by_config:
        alone.append(read_model(str(directory / "config.json"), weights=weights))
    for split in splits:
        plan = plan_for(directory, *split)
        held = held_bytes(directory, plan, weights)
        assert weight_bytes(spec.in_engine, plan) == held, split
        for each in alone:
            assert weight_bytes(each.in_engine, plan) == held, (split, each.counted)


@pytest.mark.parametrize("name", quick(LINEAR, "compressed-tensors int4 zeros"))
def test_packed_products(name: str, tmp_path: Path) -> None:
    settings, quantise = LINEAR[name]
    check(packed_model(tmp_path / "m", settings, in_products(quantise)), *SPLITS)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "bits", "group"), MLX)
def test_packed_by_mlx(mode: str, bits: int, group: int, tmp_path: Path) -> None:
    def quantise(name: str, weight: torch.Tensor) -> Quantised:
        return mlx.quantise(weight, bits, group, mode)

    told = mlx.told(bits, group, mode)
    wide = {"hidden_size": 128}  # halves are whole groups
    check(packed_model(tmp_path / "m", told, quantise, "quantization", **wide), *SPLITS)


@pytest.mark.parametrize("weights", quick(["int8", "int4"], "int4"))
def test_quantised_on_load(weights: str, tmp_path: Path) -> None:
    check(make("llama", tmp_path / "m", torch.bfloat16, intermediate_size=128), *SPLITS, weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_plain(dtype: torch.dtype, tmp_path: Path) -> None:
    check(make("llama", tmp_path / "m", dtype), *SPLITS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "olmo2"])
def test_what_is_computed_in(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path / "m", torch.bfloat16)
    plan, spec = plan_for(directory, 2, 1), describe(directory, read_config(directory), dtype="float32")
    assert weight_bytes(spec.in_engine, plan) == held_bytes(directory, plan, dtype="float32")


@pytest.mark.parametrize("kind", quick(["F32", "F16", "BF16", *BLOCK_TYPES], "Q4_K"))
def test_gguf(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_models, "_round", lambda model, kind: None)
    quantize = gguf.quants.quantize  # knows no blocks of 256

    def quantized(array: np.ndarray, as_type: Any) -> np.ndarray:
        blocks = as_type.name in BLOCK_TYPES
        return random_blocks(as_type.name, array.shape) if blocks else quantize(array, as_type)

    monkeypatch.setattr(gguf.quants, "quantize", quantized)
    sizes = {"hidden_size": 512, "intermediate_size": 768, "head_dim": 64, "num_hidden_layers": 2, "vocab_size": 131}
    file, _ = gguf_models.write("llama", tmp_path / "m", kind, attention_bias=False, mlp_bias=False, **sizes)
    check(file, *SPLITS)  # a half of 768 is one and a half blocks of 256


EXPERTS = {"num_experts": 4, "moe_intermediate_size": 64, "mlp_only_layers": []}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 64, "layer_types": None},
    "mixtral": {},
    "deepseek_v2": LATENT | {"moe_intermediate_size": 64},
    "deepseek_v3": LATENT | {"moe_intermediate_size": 64},
    "glm4_moe": {"moe_intermediate_size": 64},
    "phi3": {"head_dim": 16},
    "gemma2": {"layer_types": None},
    "gpt_neox": {},
    "olmo2": {},
    "minicpm3": LATENT,
}
"""Changed so that halves of all products are whole groups of 32."""


@pytest.mark.parametrize("name", quick(FAMILIES, "deepseek_v3"))
def test_families_of_packed_products(name: str, tmp_path: Path) -> None:
    settings, quantise = LINEAR["compressed-tensors int4 groups"]

    def but_routers(name: str, weight: torch.Tensor) -> Quantised | None:
        return None if name.endswith("gate") or ".layers." not in name else quantise(weight)

    settings = dict(settings, ignore=["lm_head", "re:.*gate$"])
    check(packed_model(tmp_path / "m", settings, but_routers, family=name, **FAMILIES[name]), *SPLITS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS | COUNTED | RECURRENT)
def test_families_that_are_plain(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path / "m", torch.bfloat16)
    check(directory, *possible(directory, *SPLITS, (4, 1)))


def possible(directory: Path, *splits: tuple[int, int]) -> list[tuple[int, int]]:
    """Those of ``splits`` that the engine does not refuse."""
    spec = describe(directory, read_config(directory))
    splits = tuple(each for each in splits if spec.tensor_obstacle(each[0]) is None)
    return [each for each in splits if each[1] == 1 or spec.pipeline_refusal is None]


WIDE = {"intermediate_size": 128}
WIDE_EXPERTS = WIDE | {"moe_intermediate_size": 64}
QUANTISED: dict[str, dict[str, Any]] = {
    "lfm2": WIDE,
    "lfm2_moe": WIDE_EXPERTS,
    "qwen3_next": WIDE_EXPERTS | {"shared_expert_intermediate_size": 64},
    "qwen3_5_text": WIDE,
    "qwen3_5_moe_text": WIDE_EXPERTS | {"shared_expert_intermediate_size": 64},
    "granitemoehybrid": WIDE,
    "falcon_h1": {},
    "nemotron_h": WIDE_EXPERTS,
    "kimi_linear": WIDE_EXPERTS,
}
"""Changed as `FAMILIES` are."""


def test_experts_that_would_be_cut_through_a_group_are_refused(tmp_path: Path) -> None:
    directory = make("qwen3_moe", tmp_path / "m", intermediate_size=128, moe_intermediate_size=32)
    with pytest.raises(PlanError, match="width 32 in groups of 32 cannot be shared by 2 ranks; use --tp 1 or less"):
        held_bytes(directory, plan_for(directory, 2, 1), "int8")


@pytest.mark.parametrize("name", quick(QUANTISED, "qwen3_next"))
def test_recurrent_families_quantised_on_load(name: str, tmp_path: Path) -> None:
    assert QUANTISED.keys() == RECURRENT.keys()
    directory = make(name, tmp_path / "m", torch.bfloat16, **QUANTISED[name])
    check(directory, *possible(directory, *SPLITS), weights="int4")


ORDERED = {
    "gptq": (gptq.told(desc_act=True), lambda weight: gptq.quantise(weight, order=True)),
    "compressed-tensors": (
        compressed.told("int4 zeros", actorder="group"),
        lambda weight: compressed.with_order("int4 zeros", weight),
    ),
}


@pytest.mark.parametrize("name", quick(ORDERED, "gptq"))
def test_columns_in_any_order(name: str, tmp_path: Path) -> None:
    """With inputs cut, the number of columns of a group that a rank has is only known from the numbers."""
    settings, quantise = ORDERED[name]
    directory = packed_model(tmp_path / "m", settings, in_products(quantise))
    check(directory, (1, 1), (1, 2))
    spec, plan = describe(directory, read_config(directory)), plan_for(directory, 2, 1)
    for held, told in zip(held_bytes(directory, plan), weight_bytes(spec.in_engine, plan), strict=True):
        assert held <= told <= 1.3 * held


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe", "deepseek_v2", "deepseek_v3", "phi3", "glm4"])
def test_families_in_gguf_files(name: str, tmp_path: Path) -> None:
    changes = test_gguf_models.CHANGES.get(name, {})
    check(gguf_models.write(name, tmp_path / name, "Q8_0", **changes, **test_gguf_models.WIDE)[0], *SPLITS)


def test_stacks_of_mxfp4(tmp_path: Path) -> None:
    check(mxfp4.model(tmp_path / "m"), *SPLITS)


@pytest.mark.slow
def test_stacks_by_mlx(tmp_path: Path) -> None:
    names = {each: each for each in ("gate_proj", "up_proj", "down_proj")}
    directory = make("qwen3_moe", tmp_path / "m", torch.bfloat16, **EXPERTS)
    check(mlx.stack_experts(directory, "mlp", names), *SPLITS, told_by_config=False)  # which says that all is packed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss", "gemma2", "olmo2"])
def test_families_quantised_on_load(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path / "m", torch.bfloat16, **FAMILIES.get(name, {}), intermediate_size=128)
    check(directory, *SPLITS, weights="int4")


SIZES = st.integers(1, 700)
PACKING = st.builds(
    Packing,
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.sampled_from([16, 32, 64, 96, 256]),
    scale=st.sampled_from([1, 2, 4]),
    offset=st.booleans(),
    nested=st.booleans(),
)


@given(rows=SIZES, columns=SIZES, packing=PACKING)
def test_a_matrix_takes_what_the_native_library_takes(rows: int, columns: int, packing: Packing) -> None:
    group = fitting_group(gcd(packing.group, columns), columns)
    nested = packing.nested and packing.group <= 32 and columns % 256 == 0
    packing = replace(packing, nested=nested, offset=packing.scale if packing.offset else 0)
    told = matrix_bytes(rows, columns, packing, 2)
    if group is None:
        assert told == Matrix(rows, columns, 0, 0, 0, 0, 0, 0).bytes
        return
    scale = 4 if nested else {1: 3, 2: 0, 4: 2}[packing.scale]
    assert told == Matrix(rows, columns, 3, packing.bits, scale, int(packing.offset > 0), 0, group).bytes
