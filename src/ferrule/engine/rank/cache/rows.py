"""Attention of a step in which every row is one token, with fixed shapes and over fixed memory, so that it can be
captured: lengths and places are tensors of the device, and what a row does not see is masked.

A row reads its keys by a table of pages, up to a bucket of context that all rows share. Places beyond a row's tokens
are read from one that holds zeros: so nothing of another sequence, and no number that is none, gets into a product.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from ferrule.engine.rank.cache.pages import NOTHING, PAGE, Pages
from ferrule.engine.rank.special_attention.explicit import explicit

View = tuple[Tensor, Tensor]
"""(rows * seen,): places of what rows may see; (rows, 1, 1, seen): True where they do."""


@dataclass
class Rows:
    """New tokens, each of which sees those of its sequence in the rows before it. ``positions`` and ``places`` (rows,):
    of each token in its sequence, and in ``pool``; ``pages`` (rows, pages): of its sequence."""

    pool: Pages
    positions: Tensor
    places: Tensor
    pages: Tensor
    _views: dict[tuple[int | None, int | None], View] = field(default_factory=dict)

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store ``key`` and ``value`` (heads, rows, width)."""
        self.pool.write(layer, self.places, key, value)

    def attend(
        self,
        layer: int,
        query: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
        chunk: int | None,
    ) -> Tensor:
        """As `attention.attend`, of each row for itself: ``query`` and the result are (query heads, rows, width)."""
        heads, rows, width = query.shape
        places, mask = self._view(window, chunk)
        # (rows, heads, seen, width)
        keys, values = (kept.view(rows, -1, *kept.shape[1:]).transpose(1, 2) for kept in self.pool.read(layer, places))
        shared = keys.shape[1]
        grouped = query.transpose(0, 1).reshape(rows, shared, heads // shared, width)
        if softcap is None and sinks is None:
            out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
        else:
            tall = None if sinks is None else sinks.view(1, shared, -1, 1).expand(rows, -1, -1, -1)
            out = explicit(grouped, keys, values, scaling, mask, softcap, tall)
        return out.reshape(rows, heads, -1).transpose(0, 1)

    def _view(self, window: int | None, chunk: int | None) -> View:
        """Made by the first layer of each kind, for all of them."""
        kind = (window, chunk)
        if kind not in self._views:
            self._views[kind] = self._make_view(window, chunk)
        return self._views[kind]

    def _make_view(self, window: int | None, chunk: int | None) -> View:
        rows, pages = self.pages.shape
        now = self.positions.unsqueeze(-1)
        begin = torch.zeros_like(now) if window is None else (now - (window - 1)).clamp_min(0)
        if chunk is not None:
            begin = torch.maximum(begin, now // chunk * chunk)
        seen = min(each for each in (pages * PAGE, window, chunk) if each is not None)
        numbers = begin + torch.arange(seen, device=now.device)
        mask = numbers <= now
        page = self.pages.gather(1, (numbers // PAGE).clamp_max(pages - 1))
        places = (page * PAGE + numbers % PAGE).masked_fill(~mask, NOTHING)
        return places.view(-1), mask.view(rows, 1, 1, seen)
