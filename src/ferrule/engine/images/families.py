"""Prompts of families that take images: what stands for an image in a rendered chat, and what its placeholders are.

Of Gemma 3 (Gemma Team 2025), Mistral Small 3.1 (as Pixtral: Agrawal et al. 2024) and Qwen's from Qwen2-VL on, as
transformers' processors write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from ferrule.engine.types import Feature

Text = Callable[[int], str]
"""Text of a token."""


class _Vision(msgspec.Struct, frozen=True):
    patch_size: int = 16
    spatial_merge_size: int = 2


class Told(msgspec.Struct, frozen=True):
    """What ``config.json`` says of images; where it does not, the defaults of transformers hold."""

    model_type: str
    vision_config: _Vision = _Vision()
    image_token_id: int | None = None
    image_token_index: int | None = None
    boi_token_index: int = 255_999
    eoi_token_index: int = 256_000
    mm_tokens_per_image: int = 256
    spatial_merge_size: int = 2

    @property
    def image_token(self) -> int:
        """The placeholder."""
        told = self.image_token_id if self.image_token_id is not None else self.image_token_index
        return FAMILIES[self.model_type].image_token if told is None else told

    @property
    def marker(self) -> int:
        """The token that stands for an image in a rendered chat."""
        return self.boi_token_index if self.model_type == "gemma3" else self.image_token

    @property
    def side(self) -> int:
        """Pixels of a side of what becomes one token (Mistral)."""
        return self.vision_config.patch_size * self.spatial_merge_size


@dataclass(frozen=True)
class Placeholders:
    """Placeholders of one image. ``text``: what its marker becomes, of which ``rows`` tokens are placeholders."""

    text: str
    rows: int


@dataclass(frozen=True)
class ImageFamily:
    """``image_token``: the placeholder, where the configuration names none. ``features``: names of the image
    processor's tensors that the model takes. ``placeholders``: of an image with these features. ``options``: what the
    image processor must be told beside its own settings."""

    image_token: int
    features: tuple[str, ...]
    placeholders: Callable[[Told, Mapping[str, Feature], Text], Placeholders]
    options: Callable[[Told], dict[str, int]] = lambda told: {}


GRID = "image_grid_thw"
"""Name of the feature that says of how many patches an image is: frames, rows and columns."""


def numbers(feature: Feature) -> list[int]:
    """The integers of ``feature``."""
    return [int(each) for each in np.frombuffer(feature.data, np.dtype(feature.dtype))]


def _qwen(told: Told, features: Mapping[str, Feature], text: Text) -> Placeholders:
    frames, rows, columns = numbers(features[GRID])
    count = frames * rows * columns // told.vision_config.spatial_merge_size**2
    return Placeholders(text(told.image_token) * count, count)


def _gemma(told: Told, features: Mapping[str, Feature], text: Text) -> Placeholders:
    count = told.mm_tokens_per_image
    begin, end = text(told.boi_token_index), text(told.eoi_token_index)
    return Placeholders(f"\n\n{begin}{text(told.image_token) * count}{end}\n\n", count)


def _mistral(told: Told, features: Mapping[str, Feature], text: Text) -> Placeholders:
    rows, columns = (each // told.side for each in numbers(features["image_sizes"]))
    row = text(told.image_token) * columns
    return Placeholders("[IMG_BREAK]".join([row] * rows) + "[IMG_END]", rows * columns)


_QWEN = ImageFamily(151_655, ("pixel_values", GRID), _qwen)
FAMILIES: dict[str, ImageFamily] = {
    "gemma3": ImageFamily(262_144, ("pixel_values",), _gemma, lambda told: {"do_pan_and_scan": False}),
    "mistral3": ImageFamily(10, ("pixel_values", "image_sizes"), _mistral, lambda told: {"patch_size": told.side}),
    "qwen2_5_vl": _QWEN,
    "qwen2_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
}
