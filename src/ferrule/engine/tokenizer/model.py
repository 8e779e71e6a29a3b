"""The tokenizer and chat template of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ferrule.engine.gguf.tokenizer import read_tokenizer
from ferrule.engine.tokenizer.chat_template import ChatTemplate
from ferrule.engine.tokenizer.files import read_files
from ferrule.engine.tokenizer.tiktoken import RANKS, read_tiktoken
from ferrule.engine.types import ChatMessage
from ferrule.errors import RequestError
from ferrule.model.gguf import gguf_file


class ModelTokenizer:
    """A model's tokenizer, of a directory or a GGUF file, as `ferrule.engine.types.Tokenizer`. Raises `ModelError`
    where there is none."""

    def __init__(self, directory: Path) -> None:
        gguf = gguf_file(directory)
        if gguf is not None:
            parts = read_tokenizer(gguf)
        elif (directory / RANKS).exists() and not (directory / "tokenizer.json").exists():
            parts = read_tiktoken(directory)
        else:
            parts = read_files(directory)
        self.codec = parts.codec
        end = parts.special.get("eos_token")
        self.eos_token_id = None if end is None else self.codec.id_of(end)
        self.end_tokens = parts.ends if self.eos_token_id is None else parts.ends | {self.eos_token_id}
        self._template = None if parts.template is None else ChatTemplate(parts.template, parts.special)
        self.has_chat_template = self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.codec.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.codec.decode(ids, skip_special_tokens)

    def render_chat(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, special tokens included. Raises `RequestError` where the template refuses it."""
        if self._template is None:
            raise RequestError("this model has no chat template; use /v1/completions", param="messages")
        try:
            return self._template.render(messages)
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's makers
            raise RequestError(f"the model's chat template refuses these messages: {error}", param="messages") from None
