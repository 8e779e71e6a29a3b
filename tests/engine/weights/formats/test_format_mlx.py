"""MLX's packed weights against mlx itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_models import (
    Quantised,
    check_bytes,
    check_cut,
    check_logits,
    check_model,
    module,
    packed_model,
    read,
    replace,
    write,
)
from safetensors.torch import load_file
from tiny_models import make
from torch import Tensor

from ferrule.engine.source import read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ModelError

mx: Any = pytest.importorskip("mlx.core")

MANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
AFFINE = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FLOATS = [("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)]


def to_torch(array: Any) -> Tensor:
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def quantise(
    weight: Tensor, bits: int = 4, group: int = 32, mode: str = "affine", dtype: Any = mx.bfloat16
) -> Quantised:
    stored = mx.quantize(mx.array(weight.float().numpy()).astype(dtype), group_size=group, bits=bits, mode=mode)
    exact = [stored[0], *(each if each.dtype == mx.uint8 else each.astype(mx.float32) for each in stored[1:])]
    numbers = mx.dequantize(*exact, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    names = ("weight", "scales", "biases")
    return {name: to_torch(each) for name, each in zip(names, stored, strict=False)}, to_torch(numbers)


def told(bits: int = 4, group: int = 32, mode: str = "affine", **modules: Any) -> dict[str, Any]:
    return {"bits": bits, "group_size": group, "mode": mode, **modules}


def matrix(outputs: int = 48, inputs: int = 256) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("mode", "bits", "group"), [*(("affine", *each) for each in AFFINE), *FLOATS])
def test_numbers_are_mlx_s(mode: str, bits: int, group: int, tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(), bits, group, mode)
    found = read(write(tmp_path, module(parts), told(bits, group, mode), "quantization"))
    fused = 2**-22 if mode == "affine" else 0  # mlx may multiply and add in one step, with one rounding less
    assert (found - numbers).abs().max() <= fused * numbers.abs().max()


def test_scales_may_be_float16(tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(), dtype=mx.float16)
    write(tmp_path, module(parts), told(), "quantization")
    assert (read(tmp_path) - numbers).abs().max() <= 2**-22 * numbers.abs().max()
    with Checkpoint(tmp_path) as checkpoint:
        weight: Any = checkpoint.tensors["m.weight"]
        assert weight.format.layout(weight).scale == "f16"


@MANY
@given(st.data(), st.sampled_from([("affine", 3, 64), ("affine", 4, 32), ("affine", 6, 128), *FLOATS]))
def test_any_cut_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject, kind: tuple[str, int, int]) -> None:
    mode, bits, group = kind
    weight = matrix(6, 256).unflatten(0, (3, 2)) if data.draw(st.booleans()) else matrix(6, 256)
    check_cut(
        write(tmp_path, module(quantise(weight, bits, group, mode)[0]), told(bits, group, mode), "quantization"), data
    )


def test_a_model_with_packed_embedding_and_head_gives_the_logits_of_its_numbers(tmp_path: Path) -> None:
    special = {"model.layers.1.mlp.down_proj": told(8, 64), "model.layers.0.mlp.up_proj": told(4, 16, "nvfp4")}
    plain = "model.layers.0.self_attn.o_proj"

    def quantiser(name: str, weight: Tensor) -> Quantised | None:
        if name == plain:
            return None
        mine = special.get(name, told())
        return quantise(weight, mine["bits"], mine["group_size"], mine["mode"])

    check_model(packed_model(tmp_path / "m", {**told(), **special, plain: False}, quantiser, "quantization"))


@pytest.mark.parametrize(("mode", "bits", "group"), FLOATS)
def test_a_model_of_small_floats_takes_what_config_json_says(mode: str, bits: int, group: int, tmp_path: Path) -> None:
    directory = packed_model(
        tmp_path / "m", told(bits, group, mode), lambda _, weight: quantise(weight, bits, group, mode), "quantization"
    )
    check_bytes(directory)
    check_logits(directory, 2)


def test_a_tied_embedding_serves_as_the_head(tmp_path: Path) -> None:
    directory = packed_model(
        tmp_path / "m", told(), lambda _, weight: quantise(weight), "quantization", tie_word_embeddings=True
    )
    check_logits(directory, 2)


def stack_experts(directory: Path, moe: str, names: dict[str, str]) -> Path:
    """The experts of a model as mlx-lm stores them: one packed stack for each projection of a layer."""
    tensors = load_file(directory / "model.safetensors")
    plain = dict(tensors)
    layers = sorted({key.split(".experts.")[0] for key in tensors if ".experts." in key})
    for layer in layers:
        for own, theirs in names.items():
            keys = [f"{layer}.experts.{index}.{own}.weight" for index in range(4)]
            parts, numbers = quantise(torch.stack([tensors.pop(key) for key in keys]))
            tensors |= module(parts, f"{layer}.switch_mlp.{theirs}")
            plain |= dict(zip(keys, numbers, strict=True))
    assert layers
    assert layers[0].endswith(moe)
    return replace(directory, tensors, plain, told(), "quantization")


@pytest.mark.parametrize(
    ("name", "moe", "names"),
    [
        ("qwen3_moe", "mlp", {each: each for each in ("gate_proj", "up_proj", "down_proj")}),
        pytest.param(
            "mixtral",
            "block_sparse_moe",
            {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_stacked_experts_are_read_one_by_one(name: str, moe: str, names: dict[str, str], tmp_path: Path) -> None:
    changes = {"num_experts": 4} if name == "qwen3_moe" else {}
    changes |= {"num_hidden_layers": 2}
    make(name, tmp_path / "m", moe_intermediate_size=64, intermediate_size=64, **changes)
    check_logits(stack_experts(tmp_path / "m", moe, names), 2)


def test_both_fields_of_newer_files_are_one_format(tmp_path: Path) -> None:
    directory = packed_model(tmp_path / "m", told(), lambda _, weight: quantise(weight), "quantization")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": config["quantization"]}))
    assert read_config(directory).model_type == "llama"
    check_logits(directory, 1)


@pytest.mark.parametrize(
    ("change", "config", "why"),
    [
        ({"scales": None}, {}, r"m\.weight is stored packed, but m\.scales is missing"),
        ({"biases": None}, {}, r"m\.biases is missing"),
        ({"biases": torch.zeros(48, 4)}, {}, r"m\.biases has the shape \[48, 4\], where \[48, 8\]"),
        ({"scales": torch.zeros(48, 8, dtype=torch.int32)}, {}, r"m\.scales has the dtype I32"),
        ({}, {"bits": 8}, r"m\.weight has the shape \[48, 32\], where \[48, 64\] would fit.* other bits or groups"),
        ({}, {"group_size": 64}, r"m\.weight has the shape"),
        ({}, {"bits": 7}, r"m is packed by MLX in mode 'affine' with 7 bits .* which is not run here"),
        ({}, {"mode": "fp3"}, r"in mode 'fp3'"),
        ({}, {"bits": "four"}, r"quantization has bits 'four', which is no whole number"),
    ],
)
def test_damage_is_named(change: dict[str, Tensor | None], config: dict[str, Any], why: str, tmp_path: Path) -> None:
    parts = quantise(matrix())[0] | change
    kept = {leaf: each for leaf, each in parts.items() if each is not None}
    write(tmp_path, module(kept), told() | config, "quantization")
    with pytest.raises(ModelError, match=why):
        read(tmp_path)
