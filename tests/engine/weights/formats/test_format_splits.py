"""Every packed format under every kind of split, and in a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_format_awq as awq
import test_format_bitsandbytes as bitsandbytes
import test_format_compressed_tensors as compressed
import test_format_fp8 as fp8
import test_format_gptq as gptq
import test_format_mlx as mlx
from packed_models import Quantised, check_logits, in_layers, packed_model
from torch import Tensor

pytestmark = pytest.mark.slow

MAKERS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Quantised]]] = {
    "gptq": (gptq.told(), gptq.quantise),
    "gptq with act-order": (gptq.told(desc_act=True), lambda weight: gptq.quantise(weight, order=True)),
    "awq": (awq.TOLD, awq.quantise),
    "mlx": (mlx.told() | {"quant_method": "mlx"}, mlx.quantise),
    "compressed-tensors": (compressed.told("int4 groups"), lambda weight: compressed.quantise(weight, "int4 groups")),
    "fp8": (fp8.told(32, 32), fp8.quantise),
    "bitsandbytes": (bitsandbytes.told(), bitsandbytes.quantise),
    "bitsandbytes, FP4": (bitsandbytes.told("fp4"), lambda weight: bitsandbytes.quantise(weight, "fp4")),
    "bitsandbytes, 8 bits": (bitsandbytes.EIGHT, bitsandbytes.quantise8),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_every_split_gives_the_logits_of_the_numbers(name: str, family: str, tmp_path: Path) -> None:
    settings, quantise = MAKERS[name]
    experts = {"num_experts": 4, "moe_intermediate_size": 64, "mlp_only_layers": []} if family == "qwen3_moe" else {}
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), family=family, **experts)
    for split in ((1, 1), (2, 1), (1, 2), (2, 2)):
        check_logits(directory, *split)


def in_products(quantise: Callable[[Tensor], Quantised]) -> Callable[[str, Tensor], Quantised | None]:
    """As `in_layers`, without routers."""
    inner = in_layers(quantise)
    return lambda name, weight: None if name.endswith("mlp.gate") else inner(name, weight)
