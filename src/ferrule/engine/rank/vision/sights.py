"""Images of one sequence as its scheduling and its positions need them. Pure: no tensors of torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ferrule.engine.images.families import GRID, numbers
from ferrule.engine.rank.batch import Picture
from ferrule.engine.source import read_seeing
from ferrule.engine.types import Feature, ImageInput
from ferrule.errors import EngineError

_features: msgspec.msgpack.Decoder[dict[str, Feature]] = msgspec.msgpack.Decoder(dict[str, Feature])


def packed(features: Mapping[str, Feature]) -> bytes:
    """``features`` as they go to the ranks that see."""
    return msgspec.msgpack.encode(features)


def unpacked(data: bytes) -> dict[str, Feature]:
    """Raises `EngineError` where ``data`` is not of `packed`."""
    try:
        return _features.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EngineError(
            f"a rank received an image that it cannot read ({error}); do all ranks run the same version of Ferrule?"
        ) from None


@dataclass(frozen=True)
class Axes:
    """Multimodal rotary positions (M-RoPE: Wang et al. 2024). ``known`` (3, tokens): of the prompt's tokens, by axis;
    later ones are ``shift`` behind their number on all axes."""

    known: NDArray[np.int64]
    shift: int

    def of(self, first: int, last: int) -> NDArray[np.int64]:
        """(3, last - first): of tokens ``first`` to ``last``."""
        held = self.known[:, first:last]
        rest = np.arange(max(first, self.known.shape[1]), last) + self.shift
        return np.concatenate([held, np.broadcast_to(rest, (3, len(rest)))], axis=1)


@dataclass(frozen=True)
class Sight:
    """An image: it begins at token ``begin`` of the prompt and covers so many ``tokens``, of which ``rows`` are
    placeholders. ``features``: see `packed`."""

    begin: int
    tokens: int
    rows: int
    features: bytes

    @property
    def end(self) -> int:
        return self.begin + self.tokens


@dataclass(frozen=True)
class Sights:
    """``together``: an image's tokens see each other, so that they are computed at once."""

    images: tuple[Sight, ...]
    together: bool = False
    axes: Axes | None = None

    def piece(self, first: int, last: int) -> int:
        """The end of a piece of the prompt that begins at ``first`` and was to end at ``last``: where that would be
        within an image that is not cut, before that, or else behind it."""
        if self.together:
            for image in self.images:
                if image.begin < last < image.end:
                    return image.begin if image.begin > first else image.end
        return last

    def pictures(self, span: int, first: int, last: int) -> list[Picture]:
        """Of the images that have tokens among ``first`` to ``last``. ``span``: its number in the batch."""
        return [
            Picture(
                span, image.begin, image.tokens, image.rows, len(image.features) if first <= image.begin < last else 0
            )
            for image in self.images
            if image.begin < last and first < image.end
        ]

    def features(self, begin: int) -> bytes:
        """Of the image that begins there."""
        return next(image.features for image in self.images if image.begin == begin)


class Seeing:
    """Facts about a model that takes images. ``whole``: its configuration."""

    def __init__(self, whole: Any) -> None:
        self.image_token = int(whole.image_token_id)
        self.together = whole.model_type in TOGETHER
        self.merged = int(whole.vision_config.spatial_merge_size) if whole.model_type in BY_AXES else 0

    def sights(self, prompt: Sequence[int], images: Sequence[ImageInput]) -> Sights:
        """``images`` of ``prompt``."""
        found = tuple(
            Sight(
                image.begin,
                image.tokens,
                sum(token == self.image_token for token in prompt[image.begin : image.begin + image.tokens]),
                packed(image.features),
            )
            for image in images
        )
        return Sights(found, self.together, self._axes(len(prompt), images) if self.merged else None)

    def _axes(self, prompt: int, images: Sequence[ImageInput]) -> Axes:
        """An image's rows and columns are counted from the position where it begins; what follows it goes on behind the
        larger of both."""
        parts: list[NDArray[np.int64]] = []
        seen = position = 0
        for image in images:
            frames, rows, columns = numbers(image.features[GRID])
            grid = np.indices((frames, rows // self.merged, columns // self.merged)).reshape(3, -1)
            text = image.begin - seen
            parts += [_text(position, text), grid + position + text]
            position += text + max(rows, columns) // self.merged
            seen = image.begin + image.tokens
        parts.append(_text(position, prompt - seen))
        return Axes(np.concatenate(parts, axis=1), position + prompt - seen - prompt)


def seeing_of(directory: Path) -> Seeing | None:
    """That of the model in ``directory``; None where it takes text only."""
    whole = read_seeing(directory)
    return None if whole is None else Seeing(whole)


def _text(position: int, count: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(position, position + count), (3, count))


TOGETHER = frozenset({"gemma3"})
"""Families of whose images all tokens see each other."""
BY_AXES = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"})
"""Families whose rotary positions have an axis each for an image's frames, rows and columns."""
