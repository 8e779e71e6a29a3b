"""Numbers as they lie in files: packed bits, small floats, slices of stored arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ferrule import _native
from ferrule.model import Range

Number = TypeVar("Number", bound=np.generic)
WORD = 4
"""Bytes of the words in which codes are packed along another axis."""

RAW = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
    "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8, "F4": np.uint8,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.uint8,
}  # fmt: skip
"""The numpy dtype by whose bits each dtype of safetensors is read; two F4 lie in a byte."""


def float32_of(array: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """The numbers of ``array``, whose bits are of safetensors' ``dtype``."""
    match dtype:
        case "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        case "F8_E8M0":
            return exponents(array.view(np.uint8))
        case "F8_E4M3" | "F8_E5M2":
            from ferrule.engine.weights.groups import VALUES

            table = VALUES["e4m3" if dtype == "F8_E4M3" else "e5m2"]
            return table[array.view(np.uint8)]
    return array.astype(np.float32)


def exponents(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """E8M0: powers of two, 2^(code - 127); 255 is NaN (OCP Microscaling Formats v1.0, 5.4.1)."""
    bits = codes.astype(np.int32)
    return np.where(bits == 255, np.float32(np.nan), np.ldexp(np.float32(1), np.minimum(bits, 254) - 127))


def unpack(words: NDArray[np.generic], bits: int, axis: int = -1) -> NDArray[np.uint8]:
    """Codes of ``bits`` that lie end to end in ``words`` along ``axis``, the lowest bits of the first word first.

    Codes may stand across two words (3, 5 or 6 bits); what is left of the last word is dropped. ``bits``: 1 to 8.
    """
    words = np.moveaxis(words, axis, -1)
    if words.ndim == 2 and words.itemsize == WORD and words.strides[1] > WORD:
        codes = _codes(words, words.strides[1], 1, bits)
    else:
        octets = np.ascontiguousarray(words).view(np.uint8)  # little-endian, as the files are
        codes = lanes(octets.reshape(-1, octets.shape[-1]), 1, bits).reshape(*octets.shape[:-1], -1)
    return np.moveaxis(codes, -1, axis)


def lanes(octets: NDArray[np.uint8], width: int, bits: int) -> NDArray[np.uint8]:
    """Codes that lie side by side in bytes (rows, bytes): of each ``width`` bytes first the lowest ``bits`` of all,
    then the next. With a width of 1 they lie end to end."""
    return _codes(octets if octets.strides[1] == 1 else np.ascontiguousarray(octets), 0, width, bits)


def _codes(words: NDArray[np.generic], step: int, width: int, bits: int) -> NDArray[np.uint8]:
    """See `_native.unpack`."""
    rows, size = len(words), words.shape[1] * words.itemsize
    codes = np.empty((rows, size * 8 // bits), np.uint8)
    _native.unpack(words.ctypes.data, rows, words.strides[0], size, width, bits, step, codes.ctypes.data)
    return codes


def unpack_range(words: NDArray[np.generic], bits: int, span: Range, axis: int = -1) -> NDArray[np.uint8]:
    """Codes ``span`` of `unpack`, reading no more of ``words`` than needed."""
    start, stop = span
    per_word = words.dtype.itemsize * 8
    step = per_word // np.gcd(per_word, bits)  # codes after which one begins with a word again
    first = start // step * step
    index = [slice(None)] * words.ndim
    index[axis] = slice(first * bits // per_word, -(-stop * bits // per_word))
    codes = unpack(words[tuple(index)], bits, axis)
    index[axis] = slice(start - first, stop - first)
    return codes[tuple(index)]


def pick(array: NDArray[Number], ranges: tuple[Range, ...], axis: int) -> NDArray[Number]:
    """``ranges`` of ``array`` along ``axis``, end to end."""
    before = (slice(None),) * (axis % array.ndim)
    return joined([array[(*before, slice(start, stop))] for start, stop in ranges], axis)


def joined(parts: Sequence[NDArray[Number]], axis: int = 0) -> NDArray[Number]:
    """``parts`` end to end along ``axis``: not copied where there is only one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)
