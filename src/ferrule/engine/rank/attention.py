"""Attention over a batch of sequences of different lengths, laid end to end, each with its own cache.

Registered with transformers under the name ``ferrule``: its attention modules call `batch_attention` with the new
tokens' queries, keys and values; storing the keys and values and reading the earlier ones happens here, so no
transformers cache is involved. A module with attention of its own kind brings the function for it (`ATTEND`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from ferrule.engine.rank.kv_cache import KVCache, Masks
from ferrule.engine.rank.special_attention.explicit import explicit
from ferrule.errors import ModelError

NAME = "ferrule"
ATTRIBUTE = "ferrule_cache"
WINDOW = "ferrule_window"
CHUNK = "ferrule_chunk"
ATTEND = "ferrule_attend"
KEPT_BY = "ferrule_kept_by"
"""Attribute of modules that have no keys and values: the layer whose cache they read."""


def register() -> None:
    """Make ``attn_implementation="ferrule"`` known to transformers."""
    AttentionInterface.register(NAME, batch_attention)


def attach(module: nn.Module, cache: KVCache, windows: Mapping[int, int], chunks: Mapping[int, int]) -> None:
    """Let every attention module of ``module`` (those with a layer number) find the cache, and its sliding window or
    chunk where it will not say that itself (``windows`` and ``chunks``, by layer)."""
    for child in module.modules():
        layer = getattr(child, "layer_idx", None)
        if isinstance(layer, int):
            setattr(child, ATTRIBUTE, cache)
            setattr(child, WINDOW, windows.get(layer))
            setattr(child, CHUNK, chunks.get(layer))


def batch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: list[Tensor | None] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of (1, heads, tokens, width) queries; the result is (1, tokens, heads, value width).

    ``sliding_window``: how many tokens back a token sees, itself included. ``s_aux``: one sink logit per query head
    (gpt-oss). ``indices``: an indexer's choice for each sequence (DeepSeek-V3.2). ``softcap``: Gemma 2's bound on the
    logits. ``attention_mask``: causality, windows and the bounds of each sequence follow from the cache, so
    transformers makes none; a model that brings its own is refused with `ModelError`.
    """
    chunk, special = getattr(module, CHUNK), getattr(module, ATTEND, None)
    if attention_mask is not None and special is None:
        raise ModelError(f"{type(module).__name__} makes its own attention mask, which this engine does not run")
    if not getattr(module, "is_causal", True):
        raise ModelError(f"{type(module).__name__} looks at later tokens too, which this engine does not run")
    cache: KVCache = getattr(module, ATTRIBUTE)
    layer: int = module.layer_idx  # type: ignore[assignment]
    window = getattr(module, WINDOW) if sliding_window is None else sliding_window
    kept_by: int | None = getattr(module, KEPT_BY, None)
    if cache.rows is not None:
        if kept_by is None:
            cache.rows.append(layer, key[0], value[0])
            kept_by = layer
        found = cache.rows.attend(kept_by, query[0], scaling, window, softcap, s_aux, chunk)
        return found.transpose(0, 1).contiguous().unsqueeze(0), None
    outputs = []
    for number, segment in enumerate(cache.segments):
        span = slice(segment.start, segment.stop)
        if special is not None:
            parts = (each[0, :, span] for each in (query, key, value))
            chosen = indices[number] if indices else None
            outputs.append(special(module, *parts, segment, scaling=scaling, window=window, chosen=chosen))
            continue
        new = segment.stop - segment.start
        first = first_seen(segment.cache.length + new, new, window, chunk)
        if kept_by is None:
            keys, values = segment.cache.append(layer, key[0, :, span], value[0, :, span], first)
        else:
            keys, values = segment.cache.seen(kept_by, new, first)
        kind = scaling, window, softcap, s_aux, chunk, segment.blocks
        outputs.append(attend(query[0, :, span], keys, values, segment.masks, *kind, first))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return joined.transpose(0, 1).contiguous().unsqueeze(0), None  # some models `view` it


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    masks: Masks,
    scaling: float | None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    chunk: int | None = None,
    blocks: Sequence[tuple[int, int]] = (),
    first: int = 0,
) -> Tensor:
    """Causal attention of one sequence's newest tokens.

    ``query`` (query heads, new, width); ``keys``, ``values`` (key/value heads, seen, width), of positions from
    ``first`` on: the last ``new`` of them are the queries' own. ``masks``: those that earlier layers made for the same
    tokens. ``chunk``: a token sees those of its own chunk of so many only (Llama 4). ``blocks``: as of `Segment`.
    Returns (query heads, new, value width).
    """
    heads, new, width = query.shape
    groups = heads // keys.shape[0]
    total = first + keys.shape[1]
    unseen = first_seen(total, new, window, chunk) - first
    if unseen > 0:
        keys, values, first = keys[:, unseen:], values[:, unseen:], first + unseen
    # The query heads that share a key/value head are laid out as further queries of it: nothing is repeated.
    grouped = query.reshape(keys.shape[0], groups * new, width)
    mask = None
    if new > 1:
        kind = (keys.shape[1], groups, window, chunk)
        mask = masks.get(kind)
        if mask is None:
            mask = masks[kind] = causal_mask(new, first, total, window, chunk, query.device, blocks).repeat(groups, 1)
    if softcap is None and sinks is None:
        out = functional.scaled_dot_product_attention(
            grouped.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scaling
        )[0]
    else:
        tall_sinks = None if sinks is None else sinks.reshape(keys.shape[0], groups, 1).repeat_interleave(new, dim=1)
        out = explicit(grouped, keys, values, scaling, mask, softcap, tall_sinks)
    return out.reshape(heads, new, values.shape[2])


def first_seen(total: int, new: int, window: int | None, chunk: int | None) -> int:
    """The first position that any of the last ``new`` of ``total`` tokens sees."""
    first = 0 if window is None else max(0, total - (new + window - 1))
    return first if chunk is None else max(first, (total - new) // chunk * chunk)


def causal_mask(
    new: int,
    first: int,
    total: int,
    window: int | None,
    chunk: int | None,
    device: torch.device,
    blocks: Sequence[tuple[int, int]] = (),
) -> Tensor:
    """(new, total - first): True where a query may see a key, of positions from ``first`` on; the queries are the last
    ``new`` of ``total`` positions. ``blocks``: begin and end of positions that see each other."""
    position = torch.arange(total - new, total, device=device).unsqueeze(1)
    seen = torch.arange(first, total, device=device).unsqueeze(0)
    allowed = seen <= position
    for begin, end in blocks:
        allowed = allowed | ((position >= begin) & (position < end) & (seen >= begin) & (seen < end))
    if window is not None:
        allowed = allowed & (seen > position - window)
    return allowed if chunk is None else allowed & (seen // chunk == position // chunk)
