"""Rendered chats and files to prompts with images, and what is refused on the way."""

from __future__ import annotations

import asyncio
import io
import struct
import sys
import zlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from seeing_models import CONFIGS, IMAGE, PROCESSORS, SPECIAL, image, image_prompts, prompt_of, save_tokenizer
from transformers import AutoConfig
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from ferrule.engine.images import prompts as module
from ferrule.engine.images.prompts import ImagePrompts, told_of
from ferrule.errors import RequestError

ONE, TWO = image(40, 24, 1), image(20, 60, 2, "JPEG")


def written(name: str, directory: Path) -> Path:
    """What is known of a model's images, without the model."""
    AutoConfig.for_model(name, image_token_id=IMAGE, **CONFIGS[name]).save_pretrained(directory)
    PROCESSORS[name].save_pretrained(directory)
    save_tokenizer(directory, SPECIAL[name])
    return directory


def by_transformers(name: str, features: Any) -> str:
    """What stands for an image by transformers' processors, which need more packages as a whole."""
    if name == "gemma3":
        tokenizer = SimpleNamespace(
            boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token=SPECIAL[name][IMAGE]
        )
        made: Any = SimpleNamespace()
        tokens = "".join([tokenizer.image_token] * CONFIGS[name]["mm_tokens_per_image"])
        made.full_image_sequence = f"\n\n{tokenizer.boi_token}{tokens}{tokenizer.eoi_token}\n\n"
        return str(Gemma3Processor.replace_image_token(made, {"num_crops": [0]}, 0))
    values = {
        key: torch.frombuffer(bytearray(one.data), dtype=getattr(torch, one.dtype)).view(one.shape)
        for key, one in features.items()
    }
    told = {"image_processor": PROCESSORS[name], "image_token": SPECIAL[name][IMAGE]}
    told |= {
        "patch_size": 4,
        "spatial_merge_size": 2,
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
    }
    processor: Any = SimpleNamespace(**told)
    kind: Any = Qwen3VLProcessor
    if name == "mistral3":  # its module imports the processor of torchvision, for a function that both have
        sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", image_processing_pil_pixtral)
        kind = import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor
    return str(kind.replace_image_token(processor, values, 0))


@pytest.mark.parametrize("name", CONFIGS)
def test_markers_become_what_transformers_puts_there(name: str, tmp_path: Path) -> None:
    prompts = image_prompts(written(name, tmp_path))
    found = prompt_of(tmp_path, [5, ONE, 7, TWO])
    assert len(found.images) == 2
    texts = [by_transformers(name, one.features) for one in found.images]
    assert list(found.tokens) == prompts._tokenizer.encode(f"w5 {texts[0]} w7 {texts[1]}", add_special_tokens=False)
    for one, text in zip(found.images, texts, strict=True):
        covered = found.tokens[one.begin : one.begin + one.tokens]
        assert (covered[0], covered[-1]) == (IMAGE, IMAGE)
        assert covered.count(IMAGE) == text.count(SPECIAL[name][IMAGE])
    first, second = found.images
    assert first.features != second.features
    assert prompt_of(tmp_path, [ONE]).images[0].features == first.features


def refused(prompts: ImagePrompts, text: str, files: Sequence[bytes], room: int = 200) -> RequestError:
    with pytest.raises(RequestError) as caught:
        asyncio.run(prompts.read(text, files, room, add_special_tokens=False))
    return caught.value


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 10^10 pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def bitmap() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "BMP")
    return file.getvalue()


def test_what_cannot_be_read_is_refused_by_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = image_prompts(written("qwen2_5_vl", tmp_path))
    mark = prompts.marker
    assert mark == "<|image_pad|>"
    for files, why in (
        ([b"no image"], "image 1 cannot be read: it is none of PNG, JPEG, WEBP, GIF, or damaged"),
        ([bitmap()], "it is none of"),
        ([image(40, 24, 1)[:200]], "it is damaged"),
        ([bomb()], "100000 x 100000 pixels, more than 67,108,864"),
        ([image(1, 900, 1)], "more than 200 times as many one way"),
        ([], "1 places for images .* and 0 came"),
        ([ONE, TWO], "and 2 came"),
    ):
        error = refused(prompts, f"w1 {mark}", files)
        assert (error.param, error.code) != ("messages", "context_length_exceeded")
        with pytest.raises(RequestError, match=why):
            raise error
    assert refused(prompts, f"w1 {mark}", [ONE], room=9).code == "context_length_exceeded"
    assert refused(prompts, f"{mark} w1 w2 w3", [ONE], room=16).code == "context_length_exceeded"
    monkeypatch.setattr(module, "MOST_IMAGES", 1)
    assert "2 images, more than 1" in str(refused(prompts, f"{mark} {mark}", [ONE, TWO]))
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert "bytes, more than 10" in str(refused(prompts, mark, [ONE]))


def test_a_placeholder_in_the_text_is_refused(tmp_path: Path) -> None:
    prompts = image_prompts(written("gemma3", tmp_path))
    error = refused(prompts, f"w1 {prompts.marker} <image_soft_token>", [ONE])
    assert "<image_soft_token>, which stands for images only" in str(error)


def test_the_first_frame_counts_and_cameras_are_turned(tmp_path: Path) -> None:
    written("mistral3", tmp_path)
    frames = [Image.new("RGB", (40, 24), colour) for colour in ("red", "blue")]
    moving, still, turned = io.BytesIO(), io.BytesIO(), io.BytesIO()
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    frames[0].save(still, "GIF")
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    frames[0].save(turned, "JPEG", exif=exif)
    one, two, three = (prompt_of(tmp_path, [each.getvalue()]).images[0] for each in (moving, still, turned))
    assert one.features == two.features
    sizes = [torch.frombuffer(bytearray(each.features["image_sizes"].data), dtype=torch.int64) for each in (one, three)]
    assert [size.tolist() for size in sizes] == [[24, 40], [40, 24]]


def test_a_model_without_settings_or_package_takes_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written("gemma3", tmp_path)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert told_of(tmp_path) is None
    assert "needs the serve extra (PIL is not installed)" in caplog.text
    for name in module.SETTINGS:
        (tmp_path / name).unlink(missing_ok=True)
    assert told_of(tmp_path) is None
    assert "no preprocessor_config.json: it takes text only" in caplog.text
