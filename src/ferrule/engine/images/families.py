"""Prompts of families that take images: what stands for an image in a rendered chat, and what its placeholders are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ferrule.engine.types import Feature

Text = Callable[[int], str]
"""Text of a token."""


@dataclass(frozen=True)
class Placeholders:
    """Placeholders of one image. ``text``: what its marker becomes, of which ``rows`` tokens are placeholders."""

    text: str
    rows: int


@dataclass(frozen=True)
class ImageFamily:
    """``marker``: the id of the token that stands for an image in a rendered chat, by the configuration; ``features``:
    names of the image processor's tensors that the model takes. ``placeholders``: of an image with these features.
    ``options``: what the image processor must be told beside its own settings."""

    marker: Callable[[Any], int]
    features: tuple[str, ...]
    placeholders: Callable[[Any, Mapping[str, Feature], Text], Placeholders]
    options: Callable[[Any], dict[str, int]] = lambda config: {}


def numbers(feature: Feature) -> list[int]:
    """The integers of ``feature``."""
    return [int(each) for each in np.frombuffer(feature.data, np.dtype(feature.dtype))]


def _image_token(config: Any) -> int:
    return int(config.image_token_id)


def _qwen(config: Any, features: Mapping[str, Feature], text: Text) -> Placeholders:
    frames, rows, columns = numbers(features["image_grid_thw"])
    count = frames * rows * columns // config.vision_config.spatial_merge_size**2
    return Placeholders(text(_image_token(config)) * count, count)


def _gemma(config: Any, features: Mapping[str, Feature], text: Text) -> Placeholders:
    count = int(config.mm_tokens_per_image)
    begin, end = text(config.boi_token_index), text(config.eoi_token_index)
    return Placeholders(f"\n\n{begin}{text(_image_token(config)) * count}{end}\n\n", count)


def _mistral(config: Any, features: Mapping[str, Feature], text: Text) -> Placeholders:
    side = _mistral_side(config)
    rows, columns = (each // side for each in numbers(features["image_sizes"]))
    row = text(_image_token(config)) * columns
    return Placeholders("[IMG_BREAK]".join([row] * rows) + "[IMG_END]", rows * columns)


def _mistral_side(config: Any) -> int:
    """Pixels of a side of what becomes one token."""
    return int(config.vision_config.patch_size * config.spatial_merge_size)


_QWEN = ImageFamily(_image_token, ("pixel_values", "image_grid_thw"), _qwen)
FAMILIES: dict[str, ImageFamily] = {
    "gemma3": ImageFamily(lambda config: int(config.boi_token_index), ("pixel_values",), _gemma),
    "mistral3": ImageFamily(
        _image_token, ("pixel_values", "image_sizes"), _mistral, lambda config: {"patch_size": _mistral_side(config)}
    ),
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
