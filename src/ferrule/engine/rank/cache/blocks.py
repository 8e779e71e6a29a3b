"""Blocks of the prefix cache in tensors: copies where sequences have memory of their own, else shared pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ferrule.engine.devices import Device
from ferrule.engine.rank.cache.pages import PagedCache, Pages
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.cache.sequence import SequenceCache
from ferrule.engine.rank.kv_cache import KVCache


def unfit(cache: KVCache, base: nn.Module, trial: int) -> str | None:
    """Why sequences cannot share what this rank keeps of them: it is more than some numbers for each token, or depends
    on what comes later. None where they can. ``trial``: a sequence that has run."""
    kept = cache.sequences[trial]
    if kept.state.layers:
        return "layers with a recurrent state"
    if kept.entries or cache.asks_tokens:
        return "compressed attention"
    if any(getattr(module, "rope_type", None) == "dynamic" for module in base.modules()):
        return "rotary frequencies by a sequence's length"
    return None


class Part(NamedTuple):
    """What a layer keeps: in ``kept`` of a sequence, (heads, tokens, width)."""

    kept: str
    layer: int
    heads: int
    width: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of a block."""
        return self.heads * BLOCK * self.width * self.dtype.itemsize


class TensorBlocks:
    """`BlockStore` of ``cache``. ``trial``: a sequence that has run."""

    def __init__(self, cache: KVCache, device: Device, trial: int) -> None:
        self._cache, self._device = cache, device
        self._copies: dict[int, list[Tensor]] = {}
        self._pages: dict[int, int] = {}
        self._opened: dict[int, list[Tensor]] = {}
        """Blocks that come from elsewhere, in host memory until a sequence begins with them."""
        like = cache.sequences[trial]
        self._parts = [
            Part(name, layer, each.shape[0], each.shape[2], each.dtype)
            for name in ("keys", "values", "index")
            for layer, each in sorted(getattr(like, name).items())
        ]
        self.block_bytes = sum(each.bytes for each in self._parts)

    def release(self, sequence: int) -> None:
        """See `BlockStore.release`."""
        self._cache.release(sequence)

    @torch.inference_mode()
    def keep(self, sequence: int, place: int, block: int) -> None:
        """See `BlockStore.keep`."""
        self._settle(block)
        of = self._cache.sequences[sequence]
        if not isinstance(of, PagedCache):
            if block not in self._copies:
                self._copies[block] = [each.clone() for each in self._views(of, place)]
            return
        own, kept = of.pages[place], self._pages.get(block)
        if kept is None:
            self._pages[block] = of.pool.share(own)
        else:
            of.pages[place] = of.pool.share(kept)
            of.pool.give_back([own])

    @torch.inference_mode()
    def adopt(self, sequence: int, blocks: list[int], known: int) -> None:
        """See `BlockStore.adopt`."""
        for block in blocks:
            self._settle(block)
        begun = self._cache.begin(sequence, known)
        begun.length = BLOCK * len(blocks)
        if isinstance(begun, PagedCache):
            begun.pages = [begun.pool.share(self._pages[block]) for block in blocks]
            return
        for number, part in enumerate(self._parts):
            pieces = [self._copies[block][number] for block in blocks]
            begun.start_with(getattr(begun, part.kept), part.layer, pieces)

    def drop(self, block: int) -> None:
        """See `BlockStore.drop`."""
        self._opened.pop(block, None)
        self._copies.pop(block, None)
        page = self._pages.pop(block, None)
        if page is not None:
            self._pool().give_back([page])

    @torch.inference_mode()
    def read_block(self, block: int) -> bytes:
        """See `BlockStore.read_block`."""
        self._settle(block)
        kept = self._in_page(self._pages[block]) if block in self._pages else self._copies[block]
        whole = torch.cat([each.contiguous().view(torch.uint8).flatten() for each in kept])
        return self._device.download(whole).numpy().tobytes()

    @torch.inference_mode()
    def write_block(self, block: int, data: bytes) -> None:
        """See `BlockStore.write_block`."""
        parts = torch.split(torch.frombuffer(bytearray(data), dtype=torch.uint8), [each.bytes for each in self._parts])
        self._store(
            block,
            [
                data.view(part.dtype).view(part.heads, BLOCK, part.width)
                for data, part in zip(parts, self._parts, strict=True)
            ],
        )

    def tokens(self, sequence: int, layer: int, first: int, last: int) -> list[Tensor]:
        """Keys and values (heads, tokens, width) of ``layer`` that a sequence has in its blocks ``first`` up to
        ``last`` (not included), also of the batch that runs."""
        of = self._cache.sequences[sequence]
        if isinstance(of, PagedCache):
            kept = of.pool.keys[layer], of.pool.values[layer]
            return [torch.cat([of.pool.of_page(one, page) for page in of.pages[first:last]], dim=1) for one in kept]
        return [one[layer][:, first * BLOCK : last * BLOCK].contiguous() for one in (of.keys, of.values)]

    def open(self, block: int) -> None:
        """A new block, which `put` fills."""
        self._opened[block] = [torch.zeros(part.heads, BLOCK, part.width, dtype=part.dtype) for part in self._parts]

    def put(self, block: int, layer: int, head: int, keys: Tensor, values: Tensor) -> None:
        """``keys`` and ``values`` (heads, tokens, width) of the heads from ``head`` on, into a block that was opened;
        from any thread."""
        given = {"keys": keys, "values": values}
        for kept, part in zip(self._opened[block], self._parts, strict=True):
            if part.layer == layer:
                kept[head : head + len(keys)] = given[part.kept]

    def _settle(self, block: int) -> None:
        """Bring what was put into ``block`` to where blocks are."""
        opened = self._opened.pop(block, None)
        if opened is not None:
            self._store(block, opened)

    def _store(self, block: int, given: Sequence[Tensor]) -> None:
        """``given``: of each of its parts, in host memory."""
        made = [self._device.upload(each) for each in given]
        if self._cache.pages is None:
            self._copies[block] = made
            return
        page = self._pages[block] = self._cache.pages.take()
        for kept, come in zip(self._in_page(page), made, strict=True):
            kept.copy_(come)

    def _pool(self) -> Pages:
        assert self._cache.pages is not None  # a block is in a page of it
        return self._cache.pages

    def _views(self, sequence: SequenceCache, place: int) -> list[Tensor]:
        tokens = slice(place * BLOCK, (place + 1) * BLOCK)
        return [getattr(sequence, part.kept)[part.layer][:, tokens] for part in self._parts]

    def _in_page(self, page: int) -> list[Tensor]:
        pool = self._pool()
        return [pool.of_page(getattr(pool, part.kept)[part.layer], page) for part in self._parts]
