"""Attention step by step, for logits that torch's fused kernel cannot bend."""

from __future__ import annotations

import torch
from torch import Tensor


def explicit(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    mask: Tensor | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """``query``, ``keys`` and ``values``: (..., heads, queries or keys, width); ``sinks`` (..., heads, queries, 1)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = torch.matmul(query, keys.transpose(-2, -1)).float() * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    if sinks is None:
        weights = logits.softmax(dim=-1)
    else:
        weights = torch.cat([logits, sinks.float()], dim=-1).softmax(dim=-1)[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)
