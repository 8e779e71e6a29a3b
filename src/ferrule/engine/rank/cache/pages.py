"""Keys and values of all sequences in one tensor for each layer, in pages: at addresses that stay while sequences come,
grow and go (the idea is that of PagedAttention, Kwon et al. 2023).

The first page belongs to no sequence: its first place holds zeros, for what is not there to be read, its second takes
what is never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.rank.cache.codes import Codes
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.cache.sequence import SequenceCache
from ferrule.errors import EngineError

PAGE = BLOCK
"""Tokens: a page is what sequences can share."""
NOTHING, WASTE = 0, 1
"""Places that hold zeros, and that are written to and never read."""
SPARE = 16
"""Pages beyond one for each sequence, which their last tokens may not fill: the self-test has sequences of its own."""


class Layout(NamedTuple):
    """Of a layer: heads, the widths of a key and a value, and their dtype; of codes that of bytes."""

    heads: int
    key: int
    value: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of a token."""
        return self.heads * (self.key + self.value) * self.dtype.itemsize


def layouts(cache: SequenceCache) -> dict[int, Layout] | None:
    """Of the layers that keep something of a sequence; None where that is more than a key and a value of each head."""
    if cache.index or cache.entries or cache.state.layers or cache.keys.keys() != cache.values.keys():
        return None
    found = {}
    for layer, key in cache.keys.items():
        value = cache.values[layer]
        if key.shape[0] != value.shape[0] or key.dtype != value.dtype:
            return None
        found[layer] = Layout(key.shape[0], key.shape[2], value.shape[2], key.dtype)
    return found


def pages_for(tokens: int, sequences: int) -> int:
    """Number of pages that hold ``tokens`` of at most ``sequences``."""
    return -(-tokens // PAGE) + sequences + SPARE


class Pages:
    """``count`` pages for tokens of every layer. ``keys`` and ``values``: by layer (places, heads, width).
    ``codes``: by which they are kept."""

    def __init__(self, device: Device, layers: Mapping[int, Layout], count: int, codes: Codes | None = None) -> None:
        self._device, self.codes = device, codes
        places = (count + 1) * PAGE
        self.keys = {n: device.empty((places, one.heads, one.key), one.dtype) for n, one in layers.items()}
        self.values = {n: device.empty((places, one.heads, one.value), one.dtype) for n, one in layers.items()}
        for kept in (*self.keys.values(), *self.values.values()):
            kept[:PAGE].zero_()
        self.bytes_per_token = sum(one.bytes for one in layers.values())
        self._free = list(range(count, 0, -1))
        self._users = [0] * (count + 1)

    def reserve(self, sequence: PagedCache, tokens: int) -> None:
        """Let ``sequence`` have room for so many. Raises `EngineError` where no page is left."""
        while len(sequence.pages) * PAGE < tokens:
            sequence.pages.append(self.take())

    def take(self) -> int:
        """A page that nobody has. Raises `EngineError` where none is left."""
        if not self._free:
            raise EngineError("no page of the cache is left; please report this, with the command that was run")
        page = self._free.pop()
        self._users[page] = 1
        return page

    def share(self, page: int) -> int:
        """Count one more that has ``page``."""
        self._users[page] += 1
        return page

    def give_back(self, pages: Sequence[int]) -> None:
        """One less has each of ``pages``."""
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def of_page(self, kept: Tensor, page: int) -> Tensor:
        """A view of what ``kept`` has in ``page``: (heads, `PAGE`, width)."""
        return kept[page * PAGE : (page + 1) * PAGE].transpose(0, 1)

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key`` and ``value`` (heads, tokens, width) in ``places`` (tokens,)."""
        if self.codes is not None:
            key, value = self.codes.encode(layer, key, value)
        self.keys[layer].index_copy_(0, places, key.transpose(0, 1))
        self.values[layer].index_copy_(0, places, value.transpose(0, 1))

    def read(self, layer: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of keys and values in ``places``: (places, heads, width)."""
        keys, values = (kept[layer].index_select(0, places) for kept in (self.keys, self.values))
        return (keys, values) if self.codes is None else self.codes.decode(layer, keys, values)

    def prepare(self, sequences: Sequence[tuple[PagedCache, int]]) -> None:
        """Room for so many tokens of each, and their places on the device, which one copy brings there."""
        for sequence, tokens in sequences:
            self.reserve(sequence, tokens)
        pages = self._device.upload(torch.tensor([page for sequence, _ in sequences for page in sequence.pages]))
        within = torch.arange(PAGE, device=pages.device)
        places = (pages.unsqueeze(-1) * PAGE + within).view(-1)
        start = 0
        for sequence, tokens in sequences:
            sequence.places = places[start : start + tokens]
            start += len(sequence.pages) * PAGE


@dataclass
class PagedCache(SequenceCache):
    """One sequence's keys and values in ``pool``. ``places``: of all its tokens, those of the batch included."""

    pool: Pages = field(kw_only=True)
    pages: list[int] = field(default_factory=list)
    places: Tensor | None = None

    def append(self, layer: int, key: Tensor, value: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        assert self.places is not None
        new = self.places[self.length : self.length + key.shape[1]]
        self.pool.write(layer, new, key, value)
        return self.seen(layer, key.shape[1], first)

    def seen(self, layer: int, new: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Copies, in the order of the tokens."""
        assert self.places is not None
        places = self.places[first : self.length + new]
        keys, values = self.pool.read(layer, places)
        return keys.transpose(0, 1), values.transpose(0, 1)

    def cut(self, tokens: int) -> None:
        super().cut(tokens)
        kept = -(-tokens // PAGE)
        self.pool.give_back(self.pages[kept:])
        del self.pages[kept:]

    def drop(self) -> None:
        self.pool.give_back(self.pages)
        self.pages.clear()

    @property
    def bytes_per_token(self) -> int:
        return self.pool.bytes_per_token
