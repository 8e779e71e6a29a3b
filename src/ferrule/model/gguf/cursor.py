"""A cursor over the bytes of a GGUF header: every count and length is held against what is left before it is used."""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any

from ferrule.errors import ModelError

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Type of a value -> how `struct` reads it."""
STRING, ARRAY = 8, 9

MOST_TEXT = 1 << 24
"""Bytes of one text; the longest in use are chat templates of some 100 KB."""
MOST_ENTRIES = 1 << 22
"""Entries of all arrays together; the largest vocabularies have 270,000 tokens, and as many scores and merges."""
KEPT = 4096
"""Longer arrays (the vocabulary) are passed over unless they are asked for; their length is kept."""


class Cursor:
    """Reads little-endian values out of ``data``, the first bytes of the file ``name``, which has ``size`` bytes.

    ``arrays``: whether long arrays are wanted. Every read raises `ModelError` where it would go beyond ``data``.
    """

    def __init__(self, data: bytes | mmap, name: str, size: int, *, arrays: bool = False) -> None:
        self.data, self.name, self.size, self.arrays = data, name, size, arrays
        self.at = 0
        self.end = len(data)
        self.entries = 0

    def bytes(self, count: int, what: str) -> bytes:
        start = self.skip(count, what)
        return self.data[start : start + count]

    def skip(self, count: int, what: str) -> int:
        """Pass over ``count`` bytes; returns where they begin."""
        start = self.at
        if count > self.end - start:
            raise self.damaged(f"{what} is said to have {count:,} bytes, more than the file has left")
        self.at = start + count
        return start

    def number(self, form: str, what: str) -> Any:
        start = self.skip(struct.calcsize(form), what)
        return struct.unpack_from(form, self.data, start)[0]

    def text(self, what: str) -> str:
        length = self.number("<Q", what)
        if length > MOST_TEXT:
            raise self.damaged(f"{what} is said to have {length:,} bytes")
        return self.bytes(length, what).decode("utf-8", "replace")

    def value(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(what)
        if kind not in SCALARS:
            raise self.damaged(f"{what} has the type {kind}, which is not known")
        return self.number(SCALARS[kind], what)

    def array(self, what: str) -> Any:
        """A list, or for a long one that is not asked for a range of its length. No model has arrays of arrays."""
        kind, length = self.number("<I", what), self.number("<Q", what)
        if kind != STRING and kind not in SCALARS:
            raise self.damaged(f"{what} is an array of the type {kind}, which is not known")
        least = 8 if kind == STRING else struct.calcsize(SCALARS[kind])
        if length > (self.end - self.at) // least:
            raise self.damaged(f"{what} is said to have {length:,} entries, more than the file has left")
        self.entries += length
        if self.entries > MOST_ENTRIES:
            raise self.damaged(f"{what} is said to have {length:,} entries, more than any model's")
        kept = self.arrays or length <= KEPT
        if kind == STRING:
            return self._texts(length, what, kept)
        start = self.skip(length * least, what)
        if not kept:
            return range(length)
        return list(struct.unpack_from(f"<{length}{SCALARS[kind][1]}", self.data, start))

    def _texts(self, length: int, what: str, kept: bool) -> list[str] | range:
        found, data, at, end, read = [], self.data, self.at, self.end, struct.Struct("<Q").unpack_from
        for _ in range(length):
            if at + 8 > end:
                raise self.damaged(f"{what} ends early")
            start = at + 8
            at = start + read(data, at)[0]
            if at > end:
                raise self.damaged(f"an entry of {what} is said to have {at - start:,} bytes, more than the file has")
            if kept:
                found.append(data[start:at].decode("utf-8", "replace"))
        self.at = at
        return found if kept else range(length)

    def damaged(self, why: str) -> ModelError:
        return ModelError(f"{self.name} is damaged or no GGUF file: {why}; download it again")
