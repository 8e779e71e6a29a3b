"""Quantised keys and values: codes of 8 or 4 bits, with a float16 scale for each `CACHE_GROUP` numbers of a head.

As in Q8_0 and Q4_0 of GGUF files, but that of 8 bits, too, the number farthest from zero has the lowest code. A group
lies within one token, so that a token is stored by itself, and no later one changes it: keys by channels (KIVI, Liu et
al. 2024) would need runs of tokens, kept as they are until such a run is whole. Native kernels keep the same codes
(`native/src/step/cache.cpp`), and read them into registers; here all that is attended to is made numbers again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ferrule.model import CACHE_BITS, CACHE_GROUP

_SCALE = torch.float16
_HALF = CACHE_GROUP // 2


class Numbers(NamedTuple):
    """Of a layer: widths of a key and a value, and their dtype."""

    key: int
    value: int
    dtype: torch.dtype


@dataclass
class Codes:
    """``layers``: what `encode` was given of each."""

    bits: int
    layers: dict[int, Numbers] = field(default_factory=dict)

    @classmethod
    def of(cls, kv_cache: str) -> Codes | None:
        """Of a name of `KV_CACHES`; None where keys and values stay numbers."""
        bits = CACHE_BITS[kv_cache]
        return cls(bits) if bits else None

    @property
    def unpacked(self) -> int:
        """Bytes of numbers, in float32 and in what is computed in, for each byte of codes at most."""
        return -(-2 * 4 * CACHE_GROUP // self.bytes_of(CACHE_GROUP))

    def bytes_of(self, width: int) -> int:
        """Of a key or a value of one head."""
        return -(-width // CACHE_GROUP) * (CACHE_GROUP * self.bits // 8 + _SCALE.itemsize)

    def encode(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Those of ``layer``, as `pack` makes them."""
        self.layers[layer] = Numbers(key.shape[-1], value.shape[-1], key.dtype)
        return self.pack(key), self.pack(value)

    def decode(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `encode`."""
        numbers = self.layers[layer]
        return self.unpack(keys, numbers.key, numbers.dtype), self.unpack(values, numbers.value, numbers.dtype)

    def pack(self, numbers: Tensor) -> Tensor:
        """(..., width) numbers as (..., bytes): group after group its codes and its scale."""
        filled = functional.pad(numbers.float(), (0, -numbers.shape[-1] % CACHE_GROUP))
        filled = filled.view(*filled.shape[:-1], -1, CACHE_GROUP)
        top, bottom, lowest = filled.amax(-1, keepdim=True), filled.amin(-1, keepdim=True), -(1 << self.bits - 1)
        scale = (torch.where(-bottom > top, bottom, top) / lowest).to(_SCALE)
        wide = scale.float()
        codes = torch.where(wide == 0, 0.0, filled / wide).round().clamp(lowest, -lowest - 1)
        if self.bits == 4:
            halves = (codes + 8).to(torch.uint8)
            stored = halves[..., :_HALF] + 16 * halves[..., _HALF:]
        else:
            stored = codes.to(torch.int8).view(torch.uint8)
        return torch.cat([stored, scale.view(torch.uint8)], dim=-1).flatten(-2)

    def unpack(self, rows: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `pack`, as far as there is one."""
        groups = rows.reshape(*rows.shape[:-1], -1, self.bytes_of(CACHE_GROUP))
        codes = groups[..., : -_SCALE.itemsize]
        scale = groups[..., -_SCALE.itemsize :].contiguous().view(_SCALE).float()
        if self.bits == 4:
            numbers = torch.cat([codes % 16, codes // 16], dim=-1).float() - 8
        else:
            numbers = codes.view(torch.int8).float()
        return (numbers * scale).flatten(-2)[..., :width].to(dtype)
