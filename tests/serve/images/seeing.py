"""A scripted engine that sees, and small images."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from fake_engine import TEXT, FakeEngine, TinyTokenizer, byte_level
from PIL import Image

from ferrule.engine import ImageInput, ImagePrompt
from ferrule.errors import RequestError

MODEL = "acme/fake-1b"
MARK = "<|image|>"
TOKENS = 3
"""Of the prompt that an image covers."""
HEAD = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]<tool_call>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>"
)
TAIL = "<|end|>{% endfor %}<|assistant|>"
PARTS = (
    HEAD + "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}" + TAIL
)
"""A template that writes the parts of contents."""
STRINGS = HEAD + "{{ m.content }}" + TAIL
"""One that knows only texts."""
USERS = (
    HEAD + "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif m.role == 'user' %}<|image|>{% endif %}{% endfor %}" + TAIL
)
"""One that knows only parts, and images only of the user's."""


def seeing_tokenizer(template: str = PARTS) -> TinyTokenizer:
    return byte_level(template, (MARK, "<|tool|>", "<tool_call>", "</tool_call>"))


@dataclass
class SeeingEngine(FakeEngine):
    """Each image covers `TOKENS` tokens. ``seen``: the files of each request. ``look``: what reading waits for;
    ``begun``: how often that was; ``left``: how often it was given up."""

    text: str = TEXT
    max_context: int = 4096
    tokenizer: TinyTokenizer = field(default_factory=seeing_tokenizer)
    image_marker: str | None = MARK
    seen: list[list[bytes]] = field(default_factory=list)
    look: asyncio.Event | None = None
    begun: int = 0
    left: int = 0

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        if self.look is not None:
            self.begun += 1
            try:
                await self.look.wait()
            except asyncio.CancelledError:
                self.left += 1
                raise
        if text.count(MARK) != len(images):
            raise RequestError(f"{len(images)} images, but {text.count(MARK)} marks", param="messages")
        for at, image in enumerate(images):
            try:
                Image.open(io.BytesIO(image)).load()
            except OSError as error:
                raise RequestError(f"image {at + 1} cannot be read: {error}", param=f"images.{at}") from None
        self.seen.append(list(images))
        mark = self.tokenizer.encode(MARK)
        tokens: list[int] = []
        inputs = []
        for piece, image in zip(text.split(MARK), [*images, None], strict=True):
            tokens += self.tokenizer.encode(piece)
            if image is not None:
                inputs.append(ImageInput(len(tokens), TOKENS, {}))
                tokens += mark * TOKENS
        return ImagePrompt(tuple(tokens), tuple(inputs))

    def prompt(self) -> str:
        """Of the last sequence, as text."""
        call = self.calls[-1]
        assert [call.prompt[each.begin] for each in call.images] == self.tokenizer.encode(MARK) * len(call.images)
        return self.tokenizer.decode(call.prompt, skip_special_tokens=False).replace(MARK * TOKENS, "[]")


def image_file(kind: str = "PNG", size: tuple[int, int] = (5, 3), colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def base64_of(image: bytes) -> str:
    return base64.b64encode(image).decode()


def data_url(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(image)}"
