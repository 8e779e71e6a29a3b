"""Images that cannot be used: refused with 400, and the field named."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from PIL import Image
from running import running
from seeing import MODEL, SeeingEngine, data_url, image_file

from ferrule.errors import RequestError
from ferrule.serve import app
from ferrule.serve.answer.prompt import body_limit
from ferrule.serve.images import shown
from ferrule.serve.images.header import Header, header_of
from ferrule.serve.images.shown import MOST_IMAGES, ShownImage, data_of

PNG = image_file()
BODY = body_limit(SeeingEngine().max_context)
IMAGE_BYTES = 1 << 20
"""Of the server here."""


def bomb(width: int, height: int) -> bytes:
    """A small file that says it is large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return PNG[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[SeeingEngine, openai.OpenAI]]:
    engine = SeeingEngine()
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app, "IMAGE_BODY_BYTES", IMAGE_BYTES)
            url = stack.enter_context(running(engine))
        yield (
            engine,
            stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10)),
        )


def ask(client: openai.OpenAI, *urls: Any, text: str = "?") -> Any:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content: Any = [{"type": "text", "text": text}, *parts]
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], max_completion_tokens=2
    )


@pytest.mark.parametrize(
    ("url", "told", "code"),
    [
        ("data:image/png;base64,A*==", "no valid base64", "invalid_image"),
        ("data:image/png;base64,QUI", "no valid base64", "invalid_image"),
        ("data:image/png,%89PNG", "must be in base64", "invalid_image"),
        ("data:image/png;base64", "no data URL", "invalid_image"),
        (data_url(b"GIF87a and then nothing".replace(b" ", b"\x00")), "declared as 'image/png', but", "invalid_image"),
        (data_url(PNG, "image/jpeg"), "declared as 'image/jpeg', but its data is image/png", "invalid_image"),
        (data_url(PNG, "text/html"), "declared as 'text/html'", "invalid_image"),
        (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "no image, or damaged; PNG, JPEG", "invalid_image"),
        (data_url(PNG[:20]), "no image, or damaged", "invalid_image"),
        (data_url(bomb(60_000, 60_000)), "60000 x 60000 pixels are more than 67,108,864", "invalid_image"),
        (data_url(bomb(0, 7)), "no pixels", "invalid_image"),
        ("https://pictures.example/a.png?key=secret", "--image-urls", "unsupported"),
        ("http://pictures.example/a.png", "--image-urls", "unsupported"),
    ],
)
def test_bad_images(server: tuple[SeeingEngine, openai.OpenAI], url: str, told: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError, match=told) as caught:
        ask(server[1], data_url(PNG), url)
    assert (caught.value.param, caught.value.code) == ("messages.0.content.2", code)
    assert "secret" not in caught.value.message


def test_what_only_the_model_finds(server: tuple[SeeingEngine, openai.OpenAI]) -> None:
    for urls, text, told, param in (
        ([data_url(PNG), data_url(PNG[:-20])], "?", "image 2 cannot be read", "messages.0.content.2"),
        ([data_url(PNG)], "<|image|>", "1 images, but 2 marks", "messages"),
        ([data_url(PNG)], "x" * 40_000, "context", "messages"),
    ):
        with pytest.raises(openai.BadRequestError, match=told) as caught:
            ask(server[1], *urls, text=text)
        assert caught.value.param == param


def test_limits_of_a_request(server: tuple[SeeingEngine, openai.OpenAI]) -> None:
    engine, client = server
    ask(client, *[data_url(PNG)] * MOST_IMAGES)
    with pytest.raises(openai.BadRequestError, match="a request may have 64") as caught:
        ask(client, *[data_url(PNG)] * (MOST_IMAGES + 1))
    assert caught.value.param == f"messages.0.content.{MOST_IMAGES + 1}"
    large = [data_url(bomb(8_000, 8_000 - at)) for at in range(3)]
    with pytest.raises(openai.BadRequestError, match="with those before it, it has more than 134,217,728 pixels"):
        ask(client, *large)
    seen = len(engine.seen)
    ask(client, data_url(PNG + bytes(BODY)))  # more than texts may have
    assert len(engine.seen[seen][0]) > BODY
    for text, told in (
        ("a" * (BODY + IMAGE_BYTES), "the body is larger than"),
        (" " * (BODY + 1), "more than .* beside images"),
        ("[]," * (BODY // 2), "more than .* beside images"),
    ):
        with pytest.raises(openai.APIStatusError, match=told) as refused:
            ask(client, text=text)
        assert refused.value.status_code == 413


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {"exif": b"Exif\x00\x00" + bytes(99)}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00"}),
    ],
)
def test_headers(kind: str, options: dict[str, Any], saved: Callable[..., bytes]) -> None:
    file = saved(kind, **options)
    assert header_of(file) == Header(f"image/{kind.lower()}", 301, 17)
    for end in range(30):
        assert header_of(file[:end]) in (None, Header(f"image/{kind.lower()}", 301, 17))


@pytest.fixture
def saved() -> Callable[..., bytes]:
    def save(kind: str, **options: Any) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (301, 17), "green").save(file, kind, **options)
        return file.getvalue()

    return save


def test_a_file_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MOST_BYTES", 1 << 10)
    for more in (0, 1 << 10):
        with pytest.raises(RequestError, match=r"here: .* more than 1 KiB"):
            data_of(ShownImage(data_url(PNG + bytes(more + 1000)), "here"))


def test_a_jpeg_without_end_is_given_up() -> None:
    assert header_of(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 100_000) is None
    assert header_of(b"\xff\xd8" + b"\xff" * 100_000) is None
