"""gpt-oss's experts against transformers' own dequantising."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_models import check_cut, check_model, read, replace, write
from safetensors.torch import load_file
from tiny_models import make
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ferrule.errors import ModelError

MANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TOLD: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def experts(count: int, inputs: int, outputs: int, least: int = 118) -> tuple[dict[str, Tensor], Tensor]:
    """Parts, and the parameter (experts, inputs, outputs) as transformers reads them."""
    seeded = torch.Generator().manual_seed(inputs)
    blocks = torch.randint(0, 256, (count, outputs, inputs // 32, 16), dtype=torch.uint8, generator=seeded)
    scales = torch.randint(least, 123, (count, outputs, inputs // 32), dtype=torch.uint8, generator=seeded)
    numbers = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {"_blocks": blocks, "_scales": scales}, numbers


def named(parts: dict[str, Tensor], name: str = "m") -> dict[str, Tensor]:
    return {name + leaf: each for leaf, each in parts.items()}


def test_numbers_are_transformers_(tmp_path: Path) -> None:
    parts, numbers = experts(3, 96, 24, least=0)
    found = read(write(tmp_path, named(parts), TOLD), "m")
    assert found.shape == (3, 96, 24)
    assert torch.equal(found, numbers)


@MANY
@given(st.data())
def test_any_cut_is_that_part_of_the_whole(tmp_path: Path, data: st.DataObject) -> None:
    check_cut(write(tmp_path, named(experts(5, 96, 24)[0]), TOLD), data, "m")


def model(directory: Path) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    make("gpt_oss", directory, torch.bfloat16, **sizes, **kinds)
    tensors = load_file(directory / "model.safetensors")
    plain = dict(tensors)
    for layer in range(2):
        for name, shape in (("gate_up_proj", (4, 64, 128)), ("down_proj", (4, 64, 64))):
            key = f"model.layers.{layer}.mlp.experts.{name}"
            assert tensors.pop(key).shape == shape
            parts, numbers = experts(*shape)
            tensors |= named(parts, key)
            plain[key] = numbers
    return replace(directory, tensors, plain, TOLD, "quantization_config")


def test_a_model_gives_the_logits_of_its_numbers(tmp_path: Path) -> None:
    check_model(model(tmp_path / "m"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"_scales": None}, r"m_blocks is stored packed, but m_scales is missing"),
        ({"_scales": torch.zeros(3, 24, 3)}, r"m_scales has the dtype F32, where U8 is needed"),
        ({"_scales": torch.zeros(3, 24, 2).byte()}, r"m_blocks has the shape \[3, 24, 3, 16\], where \[3, 24, 2, 16\]"),
        ({"_scales": torch.zeros(72).byte()}, r"m_scales has the shape \[72\], where 3 dimensions"),
        ({"_blocks": torch.zeros(3, 24, 3, 16)}, r"m_blocks has the dtype F32"),
    ],
)
def test_damage_is_named(change: dict[str, Tensor | None], why: str, tmp_path: Path) -> None:
    parts = experts(3, 96, 24)[0] | change
    kept = named({leaf: each for leaf, each in parts.items() if each is not None})
    with pytest.raises(ModelError, match=why):
        read(write(tmp_path, kept, TOLD), "m")
