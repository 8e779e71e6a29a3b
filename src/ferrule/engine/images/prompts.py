"""Prompts with images: their files read, and placeholders in the places of their markers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ferrule.engine.images.families import FAMILIES, Placeholders, Told
from ferrule.engine.images.processor import Order, Read
from ferrule.engine.source import configuration_file
from ferrule.engine.types import ImageInput, ImagePrompt, Tokenizer
from ferrule.errors import ModelError, RequestError
from ferrule.installation import lacking
from ferrule.model.gguf import SUFFIX
from ferrule.model.headers import read_json

SETTINGS = ("preprocessor_config.json", "processor_config.json")
"""Files that say how an image processor works; the first one is the older."""
MOST_BYTES = 1 << 25
"""Of an image's file."""
MOST_IMAGES = 64
"""Of a prompt."""
_log = logging.getLogger(__name__)


class Reader(Protocol):
    async def read(self, file: bytes) -> Read: ...


def told_of(directory: Path) -> Told | None:
    """What the model in ``directory`` says of images; None where it takes text only, or its images cannot be read here,
    which is logged."""
    file = configuration_file(directory)
    fields: dict[str, Any] = {} if file.suffix == SUFFIX else read_json(file)
    if fields.get("model_type") not in FAMILIES:
        return None
    if not any((directory / name).exists() for name in SETTINGS):
        _log.warning("%s has no %s: it takes text only", directory, SETTINGS[0])
        return None
    if find_spec("PIL") is None:
        _log.warning("%s takes text only: %s", directory, lacking("serve", "reading images", "PIL"))
        return None
    try:
        return msgspec.convert(fields, Told)
    except msgspec.ValidationError as error:
        raise ModelError(f"{file} cannot be read: {error}") from None


def marker_of(told: Told, tokenizer: Tokenizer) -> str:
    """As of `ferrule.engine.types.Engine.image_marker`."""
    return tokenizer.decode([told.marker], skip_special_tokens=False)


def order_of(directory: Path, told: Told, dtype: str) -> Order:
    """How the model's images are read. ``dtype``: of what it computes in."""
    family = FAMILIES[told.model_type]
    return Order(str(directory), dtype, family.features, family.options(told))


class ImagePrompts:
    """Prompts of a model that says ``told`` of images. ``reader``: of their files."""

    def __init__(self, told: Told, tokenizer: Tokenizer, reader: Reader) -> None:
        self._told, self._tokenizer, self._reader = told, tokenizer, reader
        self._family = FAMILIES[told.model_type]
        self.marker = marker_of(told, tokenizer)

    async def read(self, text: str, files: Sequence[bytes], room: int, *, add_special_tokens: bool) -> ImagePrompt:
        """See `ferrule.engine.types.Engine.read_images`. ``room``: the most tokens of the prompt."""
        head, *parts = text.split(self.marker)
        if len(parts) != len(files):
            raise _refused(f"the prompt has {len(parts)} places for images ({self.marker}), and {len(files)} came")
        if len(files) > MOST_IMAGES:
            raise _refused(f"the prompt has {len(files)} images, more than {MOST_IMAGES}")
        for number, file in enumerate(files, start=1):
            if len(file) > MOST_BYTES:
                raise _refused(f"image {number} has {len(file):,} bytes, more than {MOST_BYTES:,}", number)
        reads: list[Read] = []
        placeholders: list[Placeholders] = []
        for number, file in enumerate(files, start=1):
            found = await self._reader.read(file)
            if found.fault is not None:
                raise _refused(f"image {number} cannot be read: {found.fault}", number)
            reads.append(found)
            placeholders.append(self._family.placeholders(self._told, found.features, self._text))
            _check_room(sum(each.rows for each in placeholders), room)
        joined = head + "".join(each.text + part for each, part in zip(placeholders, parts, strict=True))
        tokens = self._tokenizer.encode(joined, add_special_tokens=add_special_tokens)
        _check_room(len(tokens), room)
        return ImagePrompt(tuple(tokens), tuple(self._placed(tokens, reads, placeholders)))

    def _placed(self, tokens: list[int], reads: list[Read], placeholders: list[Placeholders]) -> list[ImageInput]:
        """The images where their placeholders are among ``tokens``."""
        places = [place for place, token in enumerate(tokens) if token == self._told.image_token]
        if len(places) != sum(each.rows for each in placeholders):
            raise _refused(f"the prompt's text has {self._text(self._told.image_token)}, which stands for images only")
        images, seen = [], 0
        for found, each in zip(reads, placeholders, strict=True):
            begin, last = places[seen], places[seen + each.rows - 1]
            images.append(ImageInput(begin, last + 1 - begin, found.features))
            seen += each.rows
        return images

    def _text(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False)


def _refused(why: str, number: int | None = None) -> RequestError:
    """``number``: of the image at fault, from 1."""
    return RequestError(why, param="messages" if number is None else f"images.{number - 1}")


def _check_room(tokens: int, room: int) -> None:
    if tokens > room:
        raise RequestError(
            f"with its images the prompt has {tokens} tokens or more, and this model's context has room for {room}; "
            "use fewer or smaller images, or a shorter prompt",
            code="context_length_exceeded",
        )
