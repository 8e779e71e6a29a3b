"""compressed-tensors' formats, written and read by its own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    in_layers,
    module,
    packed_model,
    read,
    write,
)
from torch import Tensor

from ferrule.errors import ModelError

pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_range

MANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

GROUPED = {"strategy": "group", "group_size": 32}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 groups": ("pack-quantized", {"num_bits": 4, **GROUPED}),
    "int4 zeros": ("pack-quantized", {"num_bits": 4, "symmetric": False, **GROUPED}),
    "int3 zeros": ("pack-quantized", {"num_bits": 3, "symmetric": False, **GROUPED}),
    "int7 groups": ("pack-quantized", {"num_bits": 7, **GROUPED}),
    "int8 rows": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8 zeros": ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    "int4 naive": ("naive-quantized", {"num_bits": 4, **GROUPED}),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8 rows": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8 blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
    ),
    "fp8 naive": ("naive-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
}


def told(kind: str, actorder: str | None = None, **more: Any) -> dict[str, Any]:
    form, weights = KINDS[kind]
    weights = {"symmetric": True, "type": "int", "actorder": actorder, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]} | more


def quantise(weight: Tensor, kind: str) -> Quantised:
    """By compressed-tensors; its numbers in float32, not in the scales' dtype."""
    form, chosen = KINDS[kind]
    args = QuantizationArgs(**chosen)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    low, high = (float(each) for each in calculate_range(args, "cpu"))
    blocks = blocked(weight, chosen)
    state: dict[str, Tensor] = {"weight": weight}
    if args.symmetric:
        scales = blocks.abs().amax((1, 3)) / high
        zeros = torch.zeros(scales.shape, dtype=torch.int8)
    else:
        scales = (blocks.amax((1, 3)) - blocks.amin((1, 3))) / (high - low)
        zeros = (low - blocks.amin((1, 3)) / scales).round().clamp(low, high).to(torch.int8)
    if kind == "nvfp4":
        state["weight_global_scale"] = torch.tensor([448 * 6 / weight.abs().max()], dtype=torch.float32)
        scales = (scales * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
    else:
        scales = scales.to(torch.bfloat16)
    state["weight_scale"] = scales.reshape(1) if chosen["strategy"] == "tensor" else scales
    state["weight_zero_point"] = zeros.reshape(state["weight_scale"].shape)
    compressor: Any = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    exact = stored | {"weight_scale": stored["weight_scale"].float()}
    if kind == "nvfp4":
        codes = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
        whole = stored["weight_global_scale"]
        return stored, dequantize(codes, exact["weight_scale"], args=args, global_scale=whole, dtype=torch.float32)
    return stored, compressor.decompress(exact, scheme)["weight"].float()


def blocked(weight: Tensor, chosen: dict[str, Any]) -> Tensor:
    """(blocks of rows, rows, blocks of columns, columns)."""
    rows, columns = {
        "group": (1, chosen.get("group_size", 0)),
        "tensor_group": (1, chosen.get("group_size", 0)),
        "channel": (1, weight.shape[1]),
        "tensor": tuple(weight.shape),
        "block": tuple(chosen.get("block_structure", ())),
    }[chosen["strategy"]]
    return weight.float().reshape(weight.shape[0] // rows, rows, weight.shape[1] // columns, columns)


def matrix(outputs: int = 64, inputs: int = 128) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_library_s(kind: str, tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(), kind)
    found = read(write(tmp_path, module(parts), told(kind)))
    assert torch.equal(found, numbers)


@MANY
@given(st.data(), st.sampled_from([*KINDS]))
def test_any_cut_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    check_cut(write(tmp_path, module(quantise(matrix(), kind)[0]), told(kind)), data)


def with_order(kind: str, weight: Tensor) -> Quantised:
    """The columns' groups in any order, as older files have them: each column has its group's scale."""
    owners = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(2)) // 32
    by_group = torch.argsort(owners, stable=True)
    parts, sorted_numbers = quantise(weight[:, by_group], kind)
    numbers = torch.empty_like(sorted_numbers)
    numbers[:, by_group] = sorted_numbers
    bits = KINDS[kind][1]["num_bits"]
    codes = unpack_from_int32(parts["weight_packed"], bits, weight.shape)
    placed = torch.empty_like(codes)
    placed[:, by_group] = codes
    return parts | {"weight_packed": pack_to_int32(placed, bits), "weight_g_idx": owners.int()}, numbers


@MANY
@given(st.data(), st.sampled_from(["int4 groups", "int4 zeros"]))
def test_columns_of_groups_in_any_order(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    parts, numbers = with_order(kind, matrix())
    write(tmp_path, module(parts), told(kind))
    assert torch.equal(read(tmp_path), numbers)
    check_cut(tmp_path, data)


@pytest.mark.parametrize("kind", ["int4 zeros", "nvfp4"])
def test_a_model_gives_the_logits_of_its_numbers(kind: str, tmp_path: Path) -> None:
    check_model(packed_model(tmp_path / "m", told(kind), in_layers(lambda weight: quantise(weight, kind))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("int4 zeros", "nvfp4")])
def test_a_model_takes_what_config_json_says(kind: str, tmp_path: Path) -> None:
    directory = packed_model(tmp_path / "m", told(kind), in_layers(lambda weight: quantise(weight, kind)))
    check_bytes(directory)
    check_logits(directory, 2)


def test_several_groups_name_their_modules(tmp_path: Path) -> None:
    def quantiser(name: str, weight: Tensor) -> Quantised | None:
        if name.endswith("q_proj"):
            return None
        return quantise(weight, "fp8 rows" if "down_proj" in name else "int4 groups") if ".layers." in name else None

    groups = {
        "linear": {"targets": ["Linear"], "weights": KINDS["int4 groups"][1]},
        "down": {"targets": ["re:.*down_proj$"], "weights": KINDS["fp8 rows"][1], "format": "float-quantized"},
    }
    settings = told("int4 groups", config_groups=groups, ignore=["lm_head", "re:.*q_proj"], format="pack-quantized")
    directory = packed_model(tmp_path / "m", settings, quantiser)
    check_bytes(directory)
    check_logits(directory, 2)


@pytest.mark.parametrize(
    ("kind", "change", "config", "why"),
    [
        ("int4 groups", {"weight_scale": None}, {}, r"m\.weight_packed .* but m\.weight_scale is missing"),
        ("int4 zeros", {"weight_zero_point": None}, {}, r"m\.weight_zero_point is missing"),
        (
            "int4 zeros",
            {"weight_zero_point": torch.zeros(9, 4).int()},
            {},
            r"m\.weight_zero_point has the shape \[9, 4\]",
        ),
        ("int4 groups", {"weight_scale": torch.zeros(64, 3)}, {}, r"m\.weight_scale has the shape \[64, 3\]"),
        ("int4 groups", {"weight_scale": torch.zeros(64, 0)}, {}, r"m\.weight_scale has the shape \[64, 0\]"),
        (
            "int4 groups",
            {"weight_shape": torch.tensor([64, 120])},
            {},
            r"m\.weight_shape says \[64, 120\], but m\.weight_p",
        ),
        ("int4 groups", {"weight_packed": torch.zeros(64, 16)}, {}, r"m\.weight_packed has the dtype F32"),
        ("int4 groups", {}, {"config_groups": None}, r"quantization_config lacks config_groups"),
        ("int4 groups", {}, {"config_groups": {"a": {"weights": {}}}}, r"num_bits None, which is no whole number"),
        ("int4 groups", {}, {"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsely \(sparse-24-bitmask\)"),
        ("int8", {"weight_scale": None}, {}, r"m\.weight .* but m\.weight_scale is missing"),
        ("fp8 rows", {"weight_scale": torch.zeros(63, 1)}, {}, r"m\.weight_scale has the shape \[63, 1\]"),
        ("nvfp4", {"weight_global_scale": None}, {}, r"m\.weight_global_scale is missing"),
        ("nvfp4", {"weight_global_scale": torch.zeros(1)}, {}, r"m\.weight_global_scale is 0\.0, which scales nothing"),
        ("nvfp4", {"weight_scale": torch.zeros(64, 4).to(torch.float8_e4m3fn)}, {}, r"m\.weight_scale has the shape"),
    ],
)
def test_damage_is_named(
    kind: str, change: dict[str, Tensor | None], config: dict[str, Any], why: str, tmp_path: Path
) -> None:
    parts = quantise(matrix(), kind)[0] | change
    kept = {leaf: each for leaf, each in parts.items() if each is not None}
    with pytest.raises(ModelError, match=why):
        read(write(tmp_path, module(kept), told(kind) | config))
