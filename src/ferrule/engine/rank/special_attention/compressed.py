"""Compressed attention (DeepSeek-V4, 2026, section 2.3): a token sees the few before it, and of all others entries that
each stand for a window of them; of these an indexer chooses some, where the windows are short.

transformers' modules project, norm and rotate; which tokens a sequence has seen is told here by this engine's cache
instead of theirs. Per sequence and layer the cache has the keys of the newest tokens (`RECENT`), the inputs of windows
that are not yet whole, and the entries. A window that overlaps with the one before (``2 * head_dim`` numbers
per token) needs the inputs of that, too.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ferrule.engine.rank.attention import causal_mask
from ferrule.engine.rank.kv_cache import KVCache, Segment
from ferrule.engine.rank.layers import NUMBERS
from ferrule.engine.rank.special_attention.explicit import explicit
from ferrule.errors import ModelError

KINDS = frozenset({"DeepseekV4Attention"})
AT_ONCE = 1 << 26
"""Scores that are computed at a time: 256 MB."""
RECENT = 2
"""Number under which a layer's keys of the newest tokens are kept."""
COMPRESSOR, INDEXER = 0, 1
"""Those of the parts that make entries, under which their inputs are."""


def attach(base: nn.Module, cache: KVCache) -> None:
    """Let the layers of ``base`` that attend to compressed entries do so by sequence. Raises `ModelError` for another
    kind."""
    for name, module in base.named_modules():
        attention: Any = module
        if not compresses(attention):
            continue
        if type(attention).__name__ not in KINDS:
            raise ModelError(f"{name}: {type(attention).__name__} compresses tokens in its own way, not run here")
        output: Any = attention.o_a_proj
        output.n_groups = output.weight.shape[0] // attention.config.o_lora_rank  # a rank may have some of them
        setattr(output, NUMBERS, True)
        attention.forward = partial(_attention, attention, cache)
    for layer in getattr(base, "layers", ()):
        if getattr(getattr(layer, "mlp", None), "is_hash", False):
            cache.asks_tokens = True
            layer.mlp.forward = partial(_by_token, layer.mlp.forward, cache)


def compresses(module: nn.Module) -> bool:
    """Whether this is attention to entries that stand for several tokens."""
    return hasattr(module, "compressor") and hasattr(module, "layer_idx")


def _by_token(forward: Any, cache: KVCache, hidden: Tensor, input_ids: Tensor | None = None) -> Tensor:
    """Experts chosen by the tokens themselves, also on stages that are given hidden states."""
    found: Tensor = forward(hidden, cache.tokens if input_ids is None else input_ids)
    return found


def _attention(
    module: Any, kept: KVCache, hidden_states: Tensor, position_embeddings: dict[str, tuple[Tensor, Tensor]], **_: Any
) -> tuple[Tensor, None]:
    """In place of the module's own ``forward``: ``hidden_states`` (1, tokens, width) of all segments."""
    turn, width = _rotation(module), int(module.head_dim)
    cosine, sine = position_embeddings[module.rope_layer_type]
    latent = module.q_a_norm(module.q_a_proj(hidden_states))
    query = module.q_b_norm(module.q_b_proj(latent).unflatten(-1, (-1, width)))
    query = turn(query.transpose(1, 2), cosine, sine)[0]
    keys = turn(module.kv_norm(module.kv_proj(hidden_states)).unsqueeze(1), cosine, sine)[0]
    compressor = module.compressor
    indexer: Any = getattr(compressor, "indexer", None)
    inputs = None if compressor is None else _inputs(compressor, hidden_states)
    index_inputs = None if indexer is None else _inputs(indexer, hidden_states)
    outputs = []
    for segment in kept.segments:
        span = slice(segment.start, segment.stop)
        entries = choose = None
        rest = (latent[:, span], hidden_states[:, span], cosine[:, span], sine[:, span])
        if inputs is not None:
            entries = _entries(compressor, inputs[:, span], segment, module.layer_idx, COMPRESSOR, turn)
        if index_inputs is not None:
            index = _entries(indexer, index_inputs[:, span], segment, module.layer_idx, INDEXER, turn)
            choose = partial(_best, indexer, index, turn) if index.shape[1] > indexer.index_topk else None
        outputs.append(_of_sequence(module, query[:, span], keys[:, span], entries, segment, choose, rest))
    joined = turn(torch.cat(outputs, dim=1).unsqueeze(0), cosine, -sine).transpose(1, 2)
    grouped = joined.reshape(*joined.shape[:2], module.o_a_proj.n_groups, -1)
    return module.o_b_proj(module.o_a_proj(grouped).flatten(2)), None


def _rotation(module: nn.Module) -> Any:
    """The function by which the family's modules rotate (1, heads, tokens, width) by (1, tokens, half)."""
    return sys.modules[type(module).__module__].apply_rotary_pos_emb


def _inputs(part: Any, hidden: Tensor) -> Tensor:
    """Values and their logits: (1, tokens, twice the width)."""
    return torch.cat([part.kv_proj(hidden), part.gate_proj(hidden)], dim=-1)


def _entries(part: Any, inputs: Tensor, segment: Segment, layer: int, number: int, turn: Any) -> Tensor:
    """All entries of a sequence, (1, entries, width), those of windows that end in its new ``inputs`` included."""
    rate, width = int(part.compress_rate), int(part.head_dim)
    overlaps = inputs.shape[2] == 4 * width
    seen, new = segment.cache.length, inputs.shape[1]
    before, after = (_kept_inputs(tokens, rate, overlaps) for tokens in (seen, seen + new))
    room = (2 if overlaps else 1) * rate
    kept = segment.cache.state.room(layer, number, (1, room, inputs.shape[2]), inputs)
    rows = torch.cat([kept[:, :before], inputs], dim=1)
    kept[:, :after] = rows[:, rows.shape[1] - after :]
    first, count = seen // rate, (seen + new) // rate - seen // rate
    made = inputs.new_empty((1, count, width))
    if count:
        prior = overlaps and first > 0
        windows = rows[:, : (count + prior) * rate].view(1, count + prior, rate, -1)
        values, logits = windows.chunk(2, dim=-1)
        logits = logits + part.position_bias
        if overlaps:
            values, logits = _overlapped(values, prior, 0.0), _overlapped(logits, prior, float("-inf"))
        weights = logits.softmax(dim=2, dtype=torch.float32).to(values.dtype)
        made = part.kv_norm((values * weights).sum(dim=2))
        places = (torch.arange(first, first + count, device=made.device) * rate).unsqueeze(0)
        made = turn(made.unsqueeze(1), *part.rotary_emb(made, position_ids=places, layer_type="compress"))[0]
    return segment.cache.extend(layer, number, made, rate, first, new)


def _kept_inputs(tokens: int, rate: int, overlaps: bool) -> int:
    """Number of the last of ``tokens`` inputs that further entries are made of."""
    return tokens % rate + (rate if overlaps and tokens >= rate else 0)


def _overlapped(windows: Tensor, prior: bool, nothing: float) -> Tensor:
    """(1, windows, twice the rate, width): of each window the second half of its numbers, behind the first half of the
    one before it. With ``prior`` the first of ``windows`` is only such a one; without, it has ``nothing`` before."""
    before, own = windows.chunk(2, dim=-1)
    if prior:
        return torch.cat([before[:, :-1], own[:, 1:]], dim=2)
    return torch.cat([functional.pad(before[:, :-1], (0, 0, 0, 0, 1, 0), value=nothing), own], dim=2)


def _of_sequence(
    module: Any,
    query: Tensor,
    keys: Tensor,
    entries: Tensor | None,
    segment: Segment,
    choose: Any,
    rest: tuple[Tensor, ...],
) -> Tensor:
    """Attention of one sequence's new tokens: ``query`` (heads, new, width) and ``keys`` (1, new, width), which are
    values, too. ``choose``: which entries, by what ``rest`` is of these tokens. Returns (heads, new, width)."""
    heads, new, width = query.shape
    seen, window = segment.cache.length, int(module.sliding_window)
    held, most = min(seen, window - 1), min(seen + new, window - 1)
    recent = segment.cache.state.room(module.layer_idx, RECENT, (1, window - 1, width), keys)
    keys = torch.cat([recent[:, :held], keys], dim=1)
    recent[:, :most] = keys[:, keys.shape[1] - most :]
    near = keys.shape[1]
    if entries is not None and choose is not None and new == 1:  # it sees all there are: no others need be read
        entries, choose = entries.index_select(1, choose(None, *rest)[0]), None
    if entries is not None:
        keys = torch.cat([keys, entries], dim=1)
    outputs, step = [], max(1, AT_ONCE // (keys.shape[1] * max(heads, _index_heads(module))))
    for first in range(0, new, step):
        last = min(first + step, new)
        mask = causal_mask(last - first, seen - held, seen + last, window, None, keys.device)
        mask = functional.pad(mask, (0, near - mask.shape[1]))
        if entries is not None:
            places = torch.arange(seen + first, seen + last, device=keys.device).unsqueeze(1)
            closed = (places + 1) // int(module.compressor.compress_rate)
            there = torch.arange(entries.shape[1], device=keys.device) < closed
            if choose is not None:
                best = choose(there, *(each[:, first:last] for each in rest))
                there = torch.zeros_like(there).scatter_(1, best, True) & there
            mask = torch.cat([mask, there], dim=1)
        rows = query[:, first:last].reshape(1, -1, width)
        sinks = module.sinks.view(1, heads, 1).repeat_interleave(last - first, dim=1)
        found = explicit(rows, keys, keys, module.scaling, mask.repeat(heads, 1), None, sinks)
        outputs.append(found.view(heads, last - first, width))
    return torch.cat(outputs, dim=1)


def _index_heads(module: Any) -> int:
    return int(module.config.index_n_heads)


def _best(
    indexer: Any,
    index: Tensor,
    turn: Any,
    there: Tensor | None,
    latent: Tensor,
    hidden: Tensor,
    cosine: Tensor,
    sine: Tensor,
) -> Tensor:
    """(new, most): numbers of the entries that score best for each new token, of those that are ``there`` for it (None:
    all). ``index``: the indexer's own entries."""
    query = indexer.q_b_proj(latent).unflatten(-1, (-1, int(indexer.head_dim))).transpose(1, 2)
    query = turn(query, cosine, sine).transpose(1, 2)
    scores: Tensor = indexer.scorer(query, index, hidden)[0]
    scores = scores if there is None else scores.masked_fill(~there, float("-inf"))
    return scores.topk(int(indexer.index_topk), dim=-1).indices
