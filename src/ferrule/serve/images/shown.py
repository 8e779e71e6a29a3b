"""Image that a request shows: where its bytes come from, and the checks that they pass. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from ferrule.errors import RequestError
from ferrule.serve.images.header import Header, header_of
from ferrule.units import format_bytes

MOST_IMAGES: Final = 64
"""Of a request."""
MOST_BYTES: Final = 2**25
"""Of all files of a request."""
MOST_PIXELS: Final = 2**26
MOST_PIXELS_TOGETHER: Final = 2**27
"""Of an image, and of all of a request: decoded a pixel takes three or four bytes, however small its file is."""
TYPES: Final = "PNG, JPEG, WebP and GIF"
_ALIASES: Final[Mapping[str, str]] = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
}
_UNDECLARED: Final = ("", "application/octet-stream", "image/*")
MOST_HEAD: Final = 300
"""Characters of a data URL before its data."""


@dataclass(frozen=True)
class ShownImage:
    """Image that a request shows. ``url``: with its data (``data:``), or where it is to be fetched (``https:``).
    ``where``: its field in the request, by which errors name it; one that begins with ``content`` is of a message."""

    url: str = field(repr=False)
    where: str

    @property
    def has_data(self) -> bool:
        return is_data(self.url)


def is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def shown_image(url: Any, where: str) -> ShownImage:
    """Raises `ValueError` for what is no URL of an image."""
    if not isinstance(url, str):
        raise ValueError("the URL of an image must be a string")
    if not url[:8].lower().startswith(("data:", "https://", "http://")):
        raise ValueError("the URL of an image must begin with data: or https://")
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ValueError("the URL of an image is not valid Unicode: half a surrogate pair") from None
    return ShownImage(url, where)


def data_of(shown: ShownImage) -> bytes:
    """The file in a data URL (RFC 2397). Raises `RequestError` where it is none, or not the type that it declares."""
    comma = shown.url.find(",", 0, MOST_HEAD)
    if comma < 0:
        raise refused(shown, "it is no data URL such as data:image/png;base64,iVBORw0…")
    declared, *options = (each.strip().lower() for each in shown.url[len("data:") : comma].split(";"))
    if "base64" not in options:
        raise refused(shown, "its data must be in base64: data:image/png;base64,…")
    text = shown.url[comma + 1 :]
    if len(text) > MOST_BYTES * 4 // 3 + MOST_HEAD:
        raise refused(shown, f"it has more than {format_bytes(MOST_BYTES)}")
    if "%" in text:
        text = unquote(text)
    if "\n" in text:
        text = "".join(text.split())
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise refused(shown, f"its data is no valid base64: {error}") from None
    check(shown, data, declared)
    return data


def check(shown: ShownImage, data: bytes, declared: str = "") -> Header:
    """The header of ``data``. Raises `RequestError` where that is no image that models can see, is too large, or has
    another type than ``declared``."""
    if len(data) > MOST_BYTES:
        raise refused(shown, f"it has more than {format_bytes(MOST_BYTES)}")
    header = header_of(data)
    if header is None:
        raise refused(shown, f"it is no image, or damaged; {TYPES} are taken")
    declared = _ALIASES.get(declared, declared)
    if declared not in _UNDECLARED and declared != header.type:
        raise refused(shown, f"it is declared as {declared[:80]!r}, but its data is {header.type}")
    if not header.width or not header.height:
        raise refused(shown, "it has no pixels")
    if header.width * header.height > MOST_PIXELS:
        raise refused(
            shown, f"its {header.width} x {header.height} pixels are more than {MOST_PIXELS:,}; make it smaller"
        )
    return header


def refused(shown: ShownImage, why: str, code: str = "invalid_image") -> RequestError:
    return RequestError(f"{shown.where}: the image cannot be used: {why}", param=shown.where, code=code)
