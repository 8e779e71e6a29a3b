"""bitsandbytes' weights against its published formulas, and against the library itself where it is installed."""

from __future__ import annotations

import json
from dataclasses import replace
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

from ferrule.engine.shards.store import Store
from ferrule.engine.shards.weight_files import Layout, read_layout
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.groups import VALUES
from ferrule.errors import ModelError

MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

STATE = "weight.quant_state.bitsandbytes__nf4"
NF4 = torch.tensor(VALUES["nf4"])
"""Dettmers et al. 2023, appendix E."""
FP4 = torch.tensor([0, 0.005208333333333333, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])
TABLES = {"nf4": NF4, "fp4": torch.cat([FP4, -FP4])}


def told(kind: str = "nf4", nested: bool = False) -> dict[str, Any]:
    more = {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested, "bnb_4bit_quant_storage": "uint8"}
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, **more}


def state_of(told: dict[str, Any]) -> Tensor:
    return torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)


def quantise(weight: Tensor, kind: str = "nf4", nested: bool = False) -> Quantised:
    table, numbers = TABLES[kind], weight.numel()
    blocks = torch.nn.functional.pad(weight.float().flatten(), (0, -numbers % 64)).unflatten(0, (-1, 64))
    absmax = blocks.abs().amax(1)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    parts = {"weight.quant_map": table.clone()}
    if nested:
        offset, codebook = absmax.mean(), torch.linspace(-1, 1, 256)
        rest = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).unflatten(0, (-1, 256))
        scales = rest.abs().amax(1)
        codes = (rest / scales.unsqueeze(1) + 1).mul(127.5).round().clamp(0, 255).flatten()[: len(absmax)].byte()
        parts |= {"weight.absmax": codes, "weight.nested_absmax": scales, "weight.nested_quant_map": codebook}
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item()}
        absmax = codebook[codes.long()] * scales.repeat_interleave(256)[: len(absmax)] + offset
    else:
        parts["weight.absmax"] = absmax
    codes = (blocks / absmax.unsqueeze(1).clamp(min=1e-8)).unsqueeze(2).sub(table).abs().argmin(2)
    flat = codes.flatten()[: numbers + numbers % 2]
    parts["weight"] = (flat[::2] << 4 | flat[1::2]).byte().unsqueeze(1)
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = state_of(state)
    return parts, (table[codes] * absmax.unsqueeze(1)).flatten()[:numbers].reshape(weight.shape)


def quantise8(weight: Tensor) -> Quantised:
    scale = weight.float().abs().amax(1)
    codes = (weight.float() / scale.unsqueeze(1) * 127).round().to(torch.int8)
    parts = {"weight": codes, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, codes.float() * (scale / 127).unsqueeze(1)


EIGHT: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}


def matrix(outputs: int = 48, inputs: int = 128) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(48, 128), (300, 64), (20, 96), (7, 5)])
def test_numbers_are_the_formula_s(kind: str, nested: bool, shape: tuple[int, int], tmp_path: Path) -> None:
    parts, numbers = quantise(matrix(*shape), kind, nested)
    assert torch.equal(read(write(tmp_path, module(parts), told(kind, nested))), numbers)


def test_bytes_may_be_called_by_another_dtype(tmp_path: Path) -> None:
    parts, numbers = quantise(matrix())
    parts["weight"] = parts["weight"].flatten().view(torch.bfloat16).unsqueeze(1)
    assert torch.equal(read(write(tmp_path, module(parts), told())), numbers)


def test_numbers_of_8_bits_are_the_formula_s(tmp_path: Path) -> None:
    parts, numbers = quantise8(matrix())
    assert torch.equal(read(write(tmp_path, module(parts), EIGHT)), numbers)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_numbers_are_the_library_s(kind: str, nested: bool, tmp_path: Path) -> None:
    functional: Any = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    codes, state = functional.quantize_4bit(matrix(), quant_type=kind, compress_statistics=nested)
    parts = {"weight": codes} | {f"weight.{name}": each for name, each in state.as_dict(packed=True).items()}
    found = read(write(tmp_path, module(parts), told(kind, nested)))
    assert torch.allclose(found, functional.dequantize_4bit(codes, state), rtol=2**-22, atol=0)


def test_numbers_of_8_bits_are_the_library_s(tmp_path: Path) -> None:
    functional: Any = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    codes, scale, _ = functional.int8_vectorwise_quant(matrix().half())
    found = read(write(tmp_path, {"m.weight": codes, "m.SCB": scale}, EIGHT))
    assert torch.allclose(found, functional.int8_vectorwise_dequant(codes, scale), rtol=2**-22, atol=0)


@MANY
@given(st.data(), st.sampled_from([(48, 128), (20, 96), (7, 5)]), st.booleans())
def test_any_cut_is_that_part_of_the_whole(
    tmp_path: Path, data: st.DataObject, shape: tuple[int, int], nested: bool
) -> None:
    check_cut(write(tmp_path, module(quantise(matrix(*shape), nested=nested)[0]), told(nested=nested)), data)


@MANY
@given(st.data())
def test_any_cut_of_8_bits_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject) -> None:
    check_cut(write(tmp_path, module(quantise8(matrix())[0]), EIGHT), data)


def test_a_model_gives_the_logits_of_its_numbers(tmp_path: Path) -> None:
    check_model(packed_model(tmp_path / "m", told(), in_layers(quantise)))


def test_a_model_with_nested_scales_takes_what_config_json_says(tmp_path: Path) -> None:
    nested = in_layers(lambda weight: quantise(weight, nested=True))
    directory = packed_model(tmp_path / "m", told(nested=True), nested)
    check_bytes(directory, slack=4 * 14)  # digits of a number in each weight's state
    check_logits(directory, 2)


def test_a_model_of_8_bits_gives_the_logits_of_its_numbers(tmp_path: Path) -> None:
    check_model(packed_model(tmp_path / "m", EIGHT, in_layers(quantise8)))


def test_a_host_without_the_files_is_told_the_shapes(tmp_path: Path) -> None:
    directory = packed_model(tmp_path / "m", told(), in_layers(quantise))
    layout = Layout.unpack(read_layout(directory).pack())
    store = Store(tmp_path / "store", "m")
    store.path.mkdir(parents=True)
    store.lay_out(layout)
    with Checkpoint(directory) as whole, Checkpoint(store.path) as part:
        assert part.tensors == whole.tensors
    damaged = replace(layout.files[0], states=dict.fromkeys(layout.files[0].states, b"{}"))
    with pytest.raises(ModelError, match=r"2 bytes for tensor 'model.layers.0.mlp.down_proj.weight.quant_state"):
        Layout.unpack(replace(layout, files=(damaged,)).pack())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"weight.absmax": None}, r"m\.weight\.absmax is missing"),
        ({"weight.absmax": torch.zeros(95)}, r"m\.weight\.absmax has the shape \[95\], where \[96\]"),
        ({"weight.absmax": torch.zeros(96).byte()}, r"m\.weight\.absmax has the dtype U8, where F32"),
        ({"weight.quant_map": None}, r"m\.weight\.quant_map is missing"),
        ({"weight.quant_map": torch.zeros(16)}, r"m\.weight\.quant_map is not the table of nf4"),
        ({"weight": torch.zeros(3071, 1).byte()}, r"m\.weight has the shape \[3071, 1\], where 3,072 bytes"),
        ({"weight": None}, r"but m\.weight is missing"),
        ({"weight.quant_state.bitsandbytes__nf4": torch.zeros(5000).byte()}, r"no state .*5,000 bytes"),
        ({"weight.quant_state.bitsandbytes__nf4": torch.zeros(50).byte()}, r"is no state of a quantised weight"),
        (
            {"weight.quant_state.bitsandbytes__nf4": state_of({"shape": [1 << 40, 9], "blocksize": 0})},
            r"in blocks of 0",
        ),
        (
            {"weight.quant_state.bitsandbytes__nf4": state_of({"shape": [1 << 40, 9], "blocksize": 64})},
            r"m\.weight has",
        ),
    ],
)
def test_damage_is_named(change: dict[str, Tensor | None], why: str, tmp_path: Path) -> None:
    parts = quantise(matrix())[0] | change
    kept = {leaf: each for leaf, each in parts.items() if each is not None}
    with pytest.raises(ModelError, match=why):
        read(write(tmp_path, module(kept), told()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"SCB": torch.zeros(47)}, r"m\.SCB has the shape \[47\], where \[48\]"),
        ({"SCB": torch.zeros(48).half()}, r"m\.SCB has the dtype F16"),
        ({"weight": torch.zeros(48, 128)}, r"m\.weight has the dtype F32, where I8"),
        ({"weight_format": torch.tensor(2, dtype=torch.uint8)}, r"in the order of a GPU's tiles \(weight_format 2\)"),
    ],
)
def test_damage_of_8_bits_is_named(change: dict[str, Tensor], why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=why):
        read(write(tmp_path, module(quantise8(matrix())[0] | change), EIGHT))
