"""Modules that compute with packed weights; of experts, a forward pass as transformers' `grouped_mm` is for tensors."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ferrule.engine.rank.layers import multiplies
from ferrule.engine.weights.formats.packed import PackedStack
from ferrule.engine.weights.loading import Packs
from ferrule.engine.weights.stack import grouped_product

NAME = "ferrule"
"""Of the forward pass among transformers' own."""


def holds_experts(module: nn.Module) -> bool:
    """Whether ``module`` is a layer's experts as transformers' forward passes know them."""
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate") and hasattr(module, "_apply_gate")


def run_packed(module: Any) -> None:
    """Have ``module``, of which at least one stack is packed, computed by `forward`."""
    if NAME not in ALL_EXPERTS_FUNCTIONS:
        ALL_EXPERTS_FUNCTIONS.register(NAME, forward)
    module.config = copy(module.config)  # the others' experts may be tensors
    module.config._experts_implementation = NAME


def forward(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Sum of what the ``chosen`` experts (tokens, k) make of ``hidden`` (tokens, width), by their ``weights``. Experts
    from the held ones' number on are other ranks'."""
    tokens, k = chosen.shape
    numbers, order = chosen.reshape(-1).sort()
    ends = torch.searchsorted(numbers, torch.arange(experts.num_experts, device=numbers.device), right=True).int()
    shared = experts._is_expert_parallel
    elsewhere = (numbers >= experts.num_experts).unsqueeze(-1) if shared else None
    held = numbers.clamp(max=experts.num_experts - 1) if shared else numbers

    def product(name: str, x: Tensor) -> Tensor:
        weight = getattr(experts, name)
        if isinstance(weight, PackedStack):
            y = weight.multiply(x, numbers, ends)
        else:
            y = grouped_product(x, weight, ends, inputs_first=experts.is_transposed)
        y = y if elsewhere is None else y.masked_fill(elsewhere, 0)
        return y + getattr(experts, f"{name}_bias")[held] if experts.has_bias else y

    x = product("gate_up_proj" if experts.has_gate else "up_proj", hidden[order // k])
    x = experts._apply_gate(x) if experts.has_gate else experts.act_fn(x)
    x = product("down_proj", x)
    if experts.has_post_expert_norm:
        x = experts.post_expert_norm(x)
    x = x * weights.reshape(-1)[order].unsqueeze(-1)  # 0 for those elsewhere (`hold_experts`)
    found = torch.empty_like(x)
    found[order] = x
    return found.view(tokens, k, -1).sum(dim=1).to(hidden.dtype)


PACKS = Packs(multiplies, holds_experts, run_packed)
