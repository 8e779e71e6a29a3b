"""Latent attention on its latents (DeepSeek-V2, 2024, section 2.1): of each token one latent and one rotated key are
cached for all heads, instead of every head's key and value.

transformers' modules expand latents before attention. Here they hand them on as they are; queries are brought among the
latents by the keys' half of the last projection, and what attention makes of latents becomes values by the other half.
So no token is expanded, neither a new one nor, with every step, all that are cached.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ferrule.engine.rank.attention import ATTEND, attend, causal_mask
from ferrule.engine.rank.kv_cache import Segment
from ferrule.engine.rank.layers import NUMBERS
from ferrule.errors import ModelError


def attach(base: nn.Module) -> None:
    """Let modules of ``base`` that have latents hand them to attention as they are. Raises `ModelError` where the last
    projection does more than multiply."""
    for name, module in base.named_modules():
        if not hasattr(module, "expand_kv"):
            continue
        projection: Any = module.kv_b_proj
        if projection.bias is not None:
            raise ModelError(f"{name}.kv_b_proj has a bias, with which latents cannot be cached")
        setattr(projection, NUMBERS, True)
        module.expand_kv = _as_they_are
        setattr(module, ATTEND, latent_attention)


def _as_they_are(latents: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """In place of the expansion. (1, 1, tokens, rank) and (1, 1, tokens, rotated width)."""
    return latents, turned


def latent_attention(
    module: Any,
    query: Tensor,
    latents: Tensor,
    turned: Tensor,
    segment: Segment,
    scaling: float | None,
    window: int | None,
    chosen: Tensor | None,
) -> Tensor:
    """Causal attention of one sequence's newest tokens.

    ``query`` (heads, new, plain and rotated width), ``latents`` (1, new, rank) and ``turned`` (1, new, rotated width)
    of these tokens. ``chosen``: the tokens that an indexer has chosen (`indexer.Choice`). Returns (heads, new, value
    width).
    """
    heads, new, width = query.shape
    rank, plain = latents.shape[2], width - turned.shape[2]
    by_head = module.kv_b_proj.weight.view(heads, -1, rank)
    absorbed = torch.cat([torch.matmul(query[..., :plain], by_head[:, :plain]), query[..., plain:]], dim=-1)
    kept = segment.cache.append_keys(module.layer_idx, torch.cat([latents, turned], dim=-1))
    scale = width**-0.5 if scaling is None else scaling
    if new == 1:  # all heads are rows of one product
        if chosen is not None:
            kept = kept.index_select(1, chosen)
        found = attend(absorbed, kept, kept, segment.masks, scale, window)
    else:
        first = 0 if window is None else max(0, kept.shape[1] - (new + window - 1))
        kind = (kept.shape[1] - first, 1, window, None)
        if kind not in segment.masks:
            segment.masks[kind] = causal_mask(new, first, kept.shape[1], window, None, query.device)
        mask = segment.masks[kind] if chosen is None else segment.masks[kind] & chosen
        # The rotated width is taken along as if it were values: torch's fused kernels ask for equal widths.
        seen = kept[:, first:].expand(heads, -1, -1).unsqueeze(0)
        found = functional.scaled_dot_product_attention(absorbed.unsqueeze(0), seen, seen, attn_mask=mask, scale=scale)[
            0
        ]
    return torch.matmul(found[..., :rank], by_head[:, plain:].transpose(1, 2))
