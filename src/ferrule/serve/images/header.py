"""Headers of image files: their type and size, found without decoding them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

MOST_SEGMENTS: Final = 1000
"""Of a JPEG file before its frame; photos with a preview and a colour profile have some dozens."""
_NO_FRAME: Final = (0xC4, 0xC8, 0xCC)
"""Markers among those of JPEG's frames that are none (ITU-T T.81, table B.1)."""


@dataclass(frozen=True)
class Header:
    """``type``: the media type, such as ``image/png``. Sizes in pixels."""

    type: str
    width: int
    height: int


def header_of(data: bytes) -> Header | None:
    """Header of a PNG, JPEG, WebP or GIF file; None for other files, and where it is cut short."""
    for magic, kind in _MAGIC.items():
        if data.startswith(magic):
            try:
                size = _SIZES[kind](data)
            except IndexError:
                size = None
            return None if size is None else Header(kind, *size)
    return None


def _png(data: bytes) -> tuple[int, int] | None:
    """PNG (third edition), 11.2.1: the first chunk is IHDR."""
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def _gif(data: bytes) -> tuple[int, int] | None:
    """GIF89a, 18: the logical screen."""
    return None if len(data) < 10 else (int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """ITU-T T.81, B.2.2: the size is in the frame's header, behind other segments."""
    at = 2
    for _ in range(MOST_SEGMENTS):
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # filling
            at += 1
        if data[at] != 0xFF:
            return None
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            frame = data[at + 5 : at + 9]
            return None if len(frame) < 4 else (int.from_bytes(frame[2:4]), int.from_bytes(frame[:2]))
        at += 2 + length
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    """RFC 9649, 2.5 to 2.7: a lossy, a lossless, or an extended file. RFC 6386, 9.1 for the lossy one's size."""
    kind = data[8:16]
    if len(data) < 30:
        return None
    if kind == b"WEBPVP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"WEBPVP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"WEBPVP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


_MAGIC: Final[Mapping[bytes, str]] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_SIZES: Final[Mapping[str, Callable[[bytes], tuple[int, int] | None]]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/webp": _webp,
    "image/gif": _gif,
}
