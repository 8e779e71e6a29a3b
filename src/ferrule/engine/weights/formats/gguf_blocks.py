"""Blocks of ggml's formats taken apart: codes, scales and offsets of their groups.

Layouts and meanings are those of ggml-common.h and of the reference functions in ggml-quants.c (``dequantize_row_*``).
All in all blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import exponents, lanes
from ferrule.model.gguf import LAYOUTS, SIZES
from ferrule.model.packing import GroupLayout

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Parts = tuple[Bytes, Floats, Floats | None]
"""Codes (n, numbers of a block), scales (n, groups of a block) and offsets likewise."""


@dataclass(frozen=True)
class BlockType:
    """``numbers`` in ``size`` bytes. ``take_apart``: blocks (n, size) -> `Parts`. ``supers``: where in a block the
    float16 is of which all scales are multiples, and that of all offsets."""

    numbers: int
    size: int
    layout: GroupLayout
    take_apart: Callable[[Bytes], Parts]
    supers: tuple[int, ...] = ()

    def multiples_of(self, blocks: Bytes) -> list[Floats]:
        """For each block (n, size) what its scales and, if there are any, its offsets are multiples of: (n, 1)."""
        return [sign * _half(blocks, at) for sign, at in zip((1, -1), self.supers, strict=False)]


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte ``at`` of each block: (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Of a block of 32: bit i belongs to number i. (n, 32), each 0 or 16."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> Parts:
    return lanes(blocks[:, 2:], 16, 4), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Parts:
    return lanes(blocks[:, 4:], 16, 4), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    return lanes(blocks[:, 6:], 16, 4) | _fifth_bits(blocks, 2), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    return lanes(blocks[:, 8:], 16, 4) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    codes = lanes(blocks[:, 2:], 32, 8)
    codes ^= np.uint8(0x80)  # signed bytes, from 128 up
    return codes, _half(blocks, 0), None


def _iq4_nl(blocks: Bytes) -> Parts:
    return lanes(blocks[:, 2:], 16, 4), _half(blocks, 0), None


def _mxfp4(blocks: Bytes) -> Parts:
    return lanes(blocks[:, 1:], 16, 4), exponents(blocks[:, :1]), None


def _q2_k(blocks: Bytes) -> Parts:
    """16 groups of 16: two times four bits of scale and minimum each, then codes of 2 bits."""
    scales, least = blocks[:, :16] & np.uint8(15), blocks[:, :16] >> np.uint8(4)
    codes = lanes(blocks[:, 16:80], 32, 2)
    return codes, _half(blocks, 80) * scales.astype(np.float32), -(_half(blocks, 82) * least.astype(np.float32))


def _q3_k(blocks: Bytes) -> Parts:
    """16 groups of 16: the third bits, codes of 2 bits, scales of 6 bits with 32 for zero (low 4 bits, then high 2)."""
    codes = lanes(blocks[:, 32:96], 32, 2) | lanes(blocks[:, :32], 32, 1) << np.uint8(2)
    scales = lanes(blocks[:, 96:104], 8, 4) | lanes(blocks[:, 104:108], 4, 2) << np.uint8(4)
    return codes, _half(blocks, 108) * (scales.astype(np.float32) - np.float32(32)), None


def _scales_of_8(packed: Bytes) -> tuple[Floats, Floats]:
    """Of Q4_K and Q5_K: eight scales and minima of 6 bits in 12 bytes. The first four have bytes of their own, in whose
    high bits those of the last four are."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), least.astype(np.float32)


def _q4_k(blocks: Bytes) -> Parts:
    scales, least = _scales_of_8(blocks[:, 4:16])
    return lanes(blocks[:, 16:], 32, 4), _half(blocks, 0) * scales, -(_half(blocks, 2) * least)


def _q5_k(blocks: Bytes) -> Parts:
    scales, least = _scales_of_8(blocks[:, 4:16])
    codes = lanes(blocks[:, 48:], 32, 4) | lanes(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return codes, _half(blocks, 0) * scales, -(_half(blocks, 2) * least)


def _q6_k(blocks: Bytes) -> Parts:
    """16 groups of 16: low 4 bits, high 2 bits, signed bytes of scales."""
    codes = lanes(blocks[:, :128], 64, 4) | lanes(blocks[:, 128:192], 32, 2) << np.uint8(4)
    return codes, _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32), None


def _iq4_xs(blocks: Bytes) -> Parts:
    """8 groups of 32: scales of 6 bits with 32 for zero, high 2 bits of all first, then low 4 bits."""
    high = lanes(blocks[:, 2:4], 1, 2)
    low = lanes(blocks[:, 4:8], 1, 4)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    return lanes(blocks[:, 8:], 16, 4), _half(blocks, 0) * scales, None


_TAKEN_APART: dict[str, tuple[Callable[[Bytes], Parts], tuple[int, ...]]] = {
    "Q4_0": (_q4_0, ()),
    "Q4_1": (_q4_1, ()),
    "Q5_0": (_q5_0, ()),
    "Q5_1": (_q5_1, ()),
    "Q8_0": (_q8_0, ()),
    "IQ4_NL": (_iq4_nl, ()),
    "MXFP4": (_mxfp4, ()),
    "Q2_K": (_q2_k, (80, 82)),
    "Q3_K": (_q3_k, (108,)),
    "Q4_K": (_q4_k, (0, 2)),
    "Q5_K": (_q5_k, (0, 2)),
    "Q6_K": (_q6_k, (208,)),
    "IQ4_XS": (_iq4_xs, (0,)),
}
"""`BlockType.take_apart` and `BlockType.supers`."""

BLOCK_TYPES = {kind: BlockType(*SIZES[kind], layout, *_TAKEN_APART[kind]) for kind, layout in LAYOUTS.items()}
"""By the names of `ferrule.model.gguf.types`."""
