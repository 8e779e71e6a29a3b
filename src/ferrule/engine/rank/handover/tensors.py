"""Parts of a cache in tensors, of a device's memory or the host's, in the form in which native programs keep them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ferrule.engine.devices import Device
from ferrule.engine.rank.cache.blocks import TensorBlocks
from ferrule.engine.rank.cache.pages import Layout
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.handover.parts import Held
from ferrule.engine.rank.handover.send import Piece
from ferrule.engine.rank.handover.store import Part
from ferrule.plan import BLOCK_PAGES, PAGE_TOKENS

WHOLE = 16
"""Numbers of a value are filled up to so many."""


def head_bytes(layout: Layout) -> int:
    """Of a block of one head."""
    return BLOCK * (layout.key + _filled(layout.value)) * layout.dtype.itemsize


def as_pages(keys: Tensor, values: Tensor) -> Tensor:
    """Bytes (blocks, pages, heads, bytes) of ``keys`` and ``values`` (heads, tokens, width), both in host memory."""
    heads, tokens, width = keys.shape
    pages = keys.view(heads, -1, PAGE_TOKENS, width // _pair(keys.dtype), _pair(keys.dtype))
    across = pages.permute(1, 0, 3, 2, 4).reshape(tokens // PAGE_TOKENS, heads, -1)
    filled = functional.pad(values, (0, -values.shape[2] % WHOLE)).view(
        heads, -1, PAGE_TOKENS, _filled(values.shape[2])
    )
    along = filled.transpose(0, 1).reshape(tokens // PAGE_TOKENS, heads, -1)
    joined = torch.cat([across, along], dim=-1)
    return joined.view(torch.uint8).view(-1, BLOCK_PAGES, heads, joined.shape[-1] * joined.dtype.itemsize)


def of_pages(data: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The inverse of `as_pages`: keys and values (heads, tokens, width)."""
    blocks, pages, heads, _ = data.shape
    numbers = data.contiguous().view(layout.dtype).view(blocks * pages, heads, -1)
    across, along = torch.split(numbers, [PAGE_TOKENS * layout.key, PAGE_TOKENS * _filled(layout.value)], dim=-1)
    pair = _pair(layout.dtype)
    keys = across.reshape(blocks * pages, heads, layout.key // pair, PAGE_TOKENS, pair).permute(1, 0, 3, 2, 4)
    values = along.reshape(blocks * pages, heads, PAGE_TOKENS, -1)[..., : layout.value].transpose(0, 1)
    return keys.reshape(heads, -1, layout.key), values.reshape(heads, -1, layout.value)


def _pair(dtype: torch.dtype) -> int:
    """Numbers of a key that lie beside each other."""
    return 2 if dtype == torch.bfloat16 else 1


def _filled(width: int) -> int:
    return -(-width // WHOLE) * WHOLE


class TensorParts:
    """`PartStore` of ``blocks``. ``layouts``: of the layers that this rank keeps something of, by their numbers."""

    def __init__(self, blocks: TensorBlocks, device: Device, layouts: Mapping[int, Layout]) -> None:
        self._blocks, self._device, self._layouts = blocks, device, layouts
        self.layers = sorted(layouts)
        self._fetched: dict[tuple[int, int], tuple[int, Callable[[], list[Tensor]]]] = {}

    def held(self, firsts: Sequence[int]) -> list[Held]:
        """``firsts``: the first key/value head of each layer."""
        layouts = [self._layouts[layer] for layer in self.layers]
        return [
            Held(layer, first, each.heads, head_bytes(each))
            for layer, first, each in zip(self.layers, firsts, layouts, strict=True)
        ]

    def fetch(self, place: int, pieces: Sequence[Piece]) -> None:
        """Begin to bring ``pieces`` of a layer to the host, behind what computes them. Nothing is waited for before
        `copy_part`."""
        for piece in pieces:
            kept = self._blocks.tokens(piece.sequence, self.layers[place], piece.first, piece.last)
            self._fetched[place, piece.sequence] = piece.first, self._device.download_later(kept)

    def forget(self) -> None:
        """All that was fetched was sent."""
        self._fetched.clear()

    def open_block(self, block: int) -> None:
        """See `PartStore.open_block`."""
        self._blocks.open(block)

    def part_bytes(self, part: Part) -> int:
        """See `PartStore.part_bytes`."""
        place, _, heads = part
        return heads * head_bytes(self._layouts[self.layers[place]])

    @torch.inference_mode()
    def copy_part(self, sequence: int, place: int, count: int, part: Part, to: Any) -> None:
        """See `PartStore.copy_part`, of what was fetched."""
        layer, head, heads = part
        first, arrived = self._fetched[layer, sequence]
        here = arrived()
        self._fetched[layer, sequence] = first, lambda: here
        tokens = slice((place - first) * BLOCK, (place - first + count) * BLOCK)
        keys, values = (each[head : head + heads, tokens].contiguous() for each in here)
        to[:] = as_pages(keys, values).numpy().reshape(-1)

    @torch.inference_mode()
    def put_part(self, blocks: list[int], part: Part, data: Any) -> None:
        """See `PartStore.put_part`: it comes to the device when a sequence begins with the block."""
        place, head, heads = part
        layout = self._layouts[self.layers[place]]
        given = torch.from_numpy(np.asarray(data)).view(len(blocks), BLOCK_PAGES, heads, -1)
        for block, one in zip(blocks, given, strict=True):
            self._blocks.put(block, self.layers[place], head, *of_pages(one.unsqueeze(0), layout))
