"""Sparse attention with an indexer (DeepSeek-V3.2, 2025; GLM-5): by small keys of its own, which are cached beside the
latents, it chooses the earlier tokens that each new token attends to.

transformers' indexer runs as it is, on one sequence at a time, with this engine's cache in place of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ferrule.engine.rank.attention import causal_mask
from ferrule.engine.rank.kv_cache import KVCache, Segment
from ferrule.errors import ModelError

KINDS = frozenset({"DeepseekV32Indexer", "GlmMoeDsaIndexer"})
AT_ONCE = 1 << 26
"""Scores that are computed at a time: 256 MB."""

Choice = Tensor | None
"""Tokens that a sequence's new tokens attend to: (new, all) booleans, of a single new token (chosen) numbers; None: all
that they see."""


def attach(base: nn.Module, cache: KVCache) -> None:
    """Let the indexers of ``base`` choose among the tokens of each sequence. Raises `ModelError` for another kind."""
    indexers: list[Any] = [
        each.indexer
        for each in base.modules()
        if isinstance(getattr(each, "indexer", None), nn.Module)
        and not hasattr(each, "compress_rate")  # see compressed
    ]
    for indexer in indexers:
        if type(indexer).__name__ not in KINDS:
            raise ModelError(f"{type(indexer).__name__} chooses tokens in its own way, which is not run here")
        indexer.forward = _by_sequence(indexer, indexer.forward, cache)
    if indexers:
        base.register_forward_pre_hook(_no_mask, with_kwargs=True)


def _no_mask(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The modules look into a mask, which nothing here reads."""
    some: Tensor = given["inputs_embeds"] if given.get("inputs_embeds") is not None else given["input_ids"]
    return args, given | {"attention_mask": {"indexed_attention": some.new_empty((1, 1, 0, 0))}}


def _by_sequence(indexer: Any, choose: Callable[..., Tensor], cache: KVCache) -> Callable[..., list[Choice]]:
    """``choose``: the indexer's own function."""

    def forward(hidden: Tensor, residual: Tensor, rotary: tuple[Tensor, Tensor], *_: Any, **__: Any) -> list[Choice]:
        found = []
        for segment in cache.segments:
            span = slice(segment.start, segment.stop)
            inputs = (hidden[:, span], residual[:, span], *(each[:, span] for each in rotary))
            found.append(_choice(indexer, choose, inputs, segment))
        return found

    return forward


def _choice(indexer: Any, choose: Callable[..., Tensor], inputs: tuple[Tensor, ...], segment: Segment) -> Choice:
    """``inputs`` of one sequence's new tokens: hidden states, the latent of queries, and of rotary positions both."""
    new = segment.stop - segment.start
    keys, total = _Keys(segment, new), segment.cache.length + new
    step = max(1, AT_ONCE // (total * int(indexer.n_heads)))
    rows = []
    for first in range(0, new, step):
        last = min(first + step, new)
        hidden, residual, cosine, sine = (each[:, first:last] for each in inputs)
        seen = causal_mask(last - first, 0, segment.cache.length + last, None, None, hidden.device).unsqueeze(0)
        rows.append(choose(hidden, residual, (cosine, sine), seen, None, cache=keys)[0].long())
    if total <= int(indexer.index_topk):
        return None
    if new == 1:
        return rows[0][0]
    chosen = torch.zeros(new, total, dtype=torch.bool, device=inputs[0].device)
    for first, numbers in zip(range(0, new, step), rows, strict=True):
        chosen[first : first + step].scatter_(1, numbers, True)
    return chosen


class _Keys:
    """A sequence's keys, as an indexer asks transformers' cache for them: those of all ``new`` tokens, in parts."""

    def __init__(self, segment: Segment, new: int) -> None:
        self.cache, self.new, self.end = segment.cache, new, segment.cache.length
        self.all: Tensor | None = None

    def update_indexer(self, keys: Tensor, layer: int) -> Tensor:
        """Store ``keys`` (1, tokens, width) behind those before, and return all so far."""
        if self.all is None:
            room = keys.new_empty((1, self.new, keys.shape[2]))
            self.all = self.cache.store(self.cache.index, layer, room)
        first, self.end = self.end, self.end + keys.shape[1]
        self.all[:, first : self.end] = keys
        return self.all[:, : self.end]
