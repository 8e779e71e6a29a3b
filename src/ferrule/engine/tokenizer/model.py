"""The tokenizer and chat template of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ferrule.engine.gguf.tokenizer import read_tokenizer
from ferrule.engine.tokenizer.chat_template import ChatTemplate
from ferrule.engine.tokenizer.files import read_files
from ferrule.engine.tokenizer.parts import FastCodec, Parts
from ferrule.engine.tokenizer.tiktoken import RANKS, read_tiktoken
from ferrule.engine.types import ChatMessage
from ferrule.errors import ModelError, RequestError
from ferrule.model.gguf import gguf_file


class ModelTokenizer:
    """A model's tokenizer, of a directory or a GGUF file, as `ferrule.engine.types.Tokenizer`. ``warning``: what is
    wrong with its chat template; completions need none. Raises `ModelError` where there is no tokenizer."""

    def __init__(self, directory: Path) -> None:
        gguf = gguf_file(directory)
        self._file = gguf or directory / "tokenizer.json"
        if gguf is not None:
            parts = read_tokenizer(gguf)
        elif (directory / RANKS).exists() and not (directory / "tokenizer.json").exists():
            parts = read_tiktoken(directory)
            self._file = directory / RANKS
        else:
            parts = read_files(directory)
        self.codec = parts.codec
        end = parts.special.get("eos_token")
        self.eos_token_id = None if end is None else self.codec.id_of(end)
        self.end_tokens = parts.ends if self.eos_token_id is None else parts.ends | {self.eos_token_id}
        self._template: ChatTemplate | None = None
        self._fault = "this model has no chat template"
        self.warning: str | None = None
        self.chat_template: str | None = None
        self.response_template = parts.response
        self.template_names = frozenset[str]()
        if parts.template is not None:
            self._read_template(parts, str(gguf or _template_file(directory)))
        self.has_chat_template = self._template is not None

    def _read_template(self, parts: Parts, file: str) -> None:
        assert parts.template is not None
        try:
            self._template = ChatTemplate(parts.template, parts.special)
        except ModelError as error:
            self._fault = f"the chat template of {file} cannot be used ({str(error).rstrip('.')})"
            self.warning = f"{self._fault}: chat is refused, completions are served"
            return
        self.chat_template, self.template_names = parts.template, self._template.names
        fault = self._template.fault()
        if fault is not None:
            self.warning = f"the chat template of {file} is at fault ({fault}): requests that come upon it are refused"

    def check_vocabulary(self, rows: int) -> None:
        """Raises `ModelError` where there are more tokens than ``rows`` of the model's embedding. Tokens that were
        added to a vocabulary do not count: some models have such that they never see, as of images."""
        if self.codec.size > rows:
            raise ModelError(
                f"{self._file} has a vocabulary of {self.codec.size:,} tokens, but the model's embedding only {rows:,} "
                "rows: it is the tokenizer of another model; take the one that was published with these weights"
            )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.codec.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.codec.decode(ids, skip_special_tokens)

    @cached_property
    def _json(self) -> str | None:
        return self.codec.inner.to_str() if isinstance(self.codec, FastCodec) else None

    def to_json(self) -> str | None:
        """As ``tokenizer.json`` would have it, with all tokens that other files add; None for one of transformers'."""
        return self._json

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text, special tokens included. Raises `RequestError` where the template refuses it."""
        if self._template is None:
            raise RequestError(
                f"messages: {self._fault}; use /v1/completions with a prompt instead",
                param="messages",
                code="no_chat_template",
            )
        try:
            return self._template.render(
                messages, tools=tools, options=options, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's makers
            raise RequestError(f"the model's chat template refuses these messages: {error}", param="messages") from None


def _template_file(directory: Path) -> Path:
    own = directory / "chat_template.jinja"
    return own if own.exists() else directory / "tokenizer_config.json"
