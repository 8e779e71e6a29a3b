"""The model's image processor, as a program of its own: ``python -m ferrule.engine.images.processor ORDER``.

Files come in on its standard input, what the processor makes of them goes out, each as MessagePack behind its length.
It imports torch and transformers, which a server does not, and reads what strangers have sent.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from typing import IO, Any

import msgspec

from ferrule.engine.import_structure import import_models
from ferrule.engine.types import Feature

LENGTH = struct.Struct("<Q")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
PIXELS = 1 << 26
"""The most of an image as it is stored."""
SIDES = 200
"""How many times as long as wide an image may be: more is refused by processors, or becomes nothing."""


class Order(msgspec.Struct, frozen=True):
    """Images are to be read as the model in ``directory`` takes them: ``features`` of them, as numbers of ``dtype``, by
    its image processor with these ``options``."""

    directory: str
    dtype: str
    features: tuple[str, ...]
    options: dict[str, int]


class Read(msgspec.Struct, frozen=True):
    """``fault``: why an image cannot be read; None: ``features`` are those of it."""

    features: dict[str, Feature] = {}
    fault: str | None = None


def load(order: Order) -> Any:
    """The image processor, as transformers has it for Pillow."""
    import_models()
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(
        order.directory, backend="pil", local_files_only=True, trust_remote_code=False
    )


def read(processor: Any, file: bytes, order: Order) -> Read:
    """Features of one image; integers remain such."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # it would only warn of what is refused here
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > PIXELS:
                return Read(fault=f"it has {width} x {height} pixels, more than {PIXELS:,}")
            if max(width, height) > SIDES * min(width, height):
                return Read(fault=f"it has {width} x {height} pixels, more than {SIDES} times as many one way")
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        return Read(fault=f"it is none of {', '.join(FORMATS)}, or damaged")
    except Exception as error:  # noqa: BLE001 - decoders raise what they like of damaged files
        return Read(fault=f"it is damaged ({error})")
    try:
        made = processor(images=[picture], return_tensors="pt", **order.options)
    except ValueError as error:
        return Read(fault=f"the model's image processor refuses it: {error}")
    return _packed({name: made[name] for name in order.features}, order.dtype)


def _packed(tensors: dict[str, Any], dtype: str) -> Read:
    import torch

    features = {}
    for name, tensor in tensors.items():
        values = tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor.to(torch.int64)
        data = values.contiguous().view(torch.uint8).numpy().tobytes()
        features[name] = Feature(str(values.dtype).removeprefix("torch."), tuple(values.shape), data)
    return Read(features)


def _received(stream: IO[bytes]) -> bytes | None:
    header = stream.read(LENGTH.size)
    return stream.read(*LENGTH.unpack(header)) if len(header) == LENGTH.size else None


def main(arguments: list[str]) -> int:
    order = msgspec.json.decode(arguments[0], type=Order)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    processor = load(order)
    out.write(LENGTH.pack(0))  # it is ready
    out.flush()
    while (file := _received(sys.stdin.buffer)) is not None:
        answer = msgspec.msgpack.encode(read(processor, file, order))
        out.write(LENGTH.pack(len(answer)) + answer)
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
