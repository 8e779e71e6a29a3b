"""How a model's chat template is told of images: as parts of a message, or by the model's mark within its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrule.engine import ChatMessage, Engine
from ferrule.errors import RequestError
from ferrule.serve.images.shown import ShownImage

Content = str | tuple[str | ShownImage, ...]
"""Of a message: text, or with images in between."""
_PROBE: Final = "Ferrule"


@dataclass(frozen=True)
class Layout:
    """``marker``: what stands for an image in a rendered chat. ``parts``: whether the template writes it by itself.
    ``only_parts``: it takes no content that is a string."""

    marker: str
    parts: bool = True
    only_parts: bool = False

    def content(self, content: Content) -> str | list[dict[str, Any]]:
        """``content`` as the template takes it."""
        if isinstance(content, str) and not self.only_parts:
            return content
        if not self.parts:
            return "\n".join(each if isinstance(each, str) else self.marker for each in content)
        told = (content,) if isinstance(content, str) else content
        return [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"} for each in told]


def layout_of(engine: Engine) -> Layout | None:
    """Found out by chats of one message. None for a model that takes text only."""
    marker = engine.image_marker
    if marker is None:
        return None
    shown = _rendered(engine, [{"type": "image"}, {"type": "text", "text": _PROBE}])
    if shown.count(marker) != 1 or _PROBE not in shown:
        return Layout(marker, parts=False)
    return Layout(marker, only_parts=_PROBE not in _rendered(engine, _PROBE))


def _rendered(engine: Engine, content: str | list[dict[str, Any]]) -> str:
    try:
        return engine.tokenizer.render_chat([ChatMessage(role="user", content=content)])
    except RequestError:
        return ""


def together(parts: Iterable[str | ShownImage], between: str = "\n") -> Content:
    """``parts`` with the texts that follow each other as one, of paragraphs; where there is no image just that."""
    made, texts = list[str | ShownImage](), list[str]()
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        made += [between.join(texts), part] if texts else [part]
        texts = []
    text = between.join(texts)
    if not made:
        return text
    return (*made, text) if texts else tuple(made)


def parts_of(content: Content) -> tuple[str | ShownImage, ...]:
    """Without empty texts."""
    return tuple(filter(None, (content,) if isinstance(content, str) else content))


def text_in(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(each for each in content if isinstance(each, str))


def images_in(content: Content) -> Sequence[ShownImage]:
    return () if isinstance(content, str) else tuple(each for each in content if isinstance(each, ShownImage))
