"""The model's own tokenizer and chat template, by transformers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from ferrule.engine.gguf.tokenizer import end_tokens, read_tokenizer, sampling_defaults
from ferrule.engine.source import first_line
from ferrule.engine.tiktoken import RANKS, read_tiktoken
from ferrule.engine.types import SamplingParams
from ferrule.errors import ModelError, RequestError
from ferrule.model.gguf import gguf_file
from ferrule.model.headers import read_json


class ModelTokenizer:
    """A model's tokenizer, of a directory or a GGUF file, as `ferrule.engine.types.Tokenizer`. Raises `ModelError`
    where there is none."""

    def __init__(self, directory: Path) -> None:
        gguf = gguf_file(directory)
        self._inner: Any = _read(directory) if gguf is None else read_tokenizer(gguf)
        self._inner.model_max_length = sys.maxsize  # the engine itself refuses what is too long, in better words
        self.eos_token_id: int | None = self._inner.eos_token_id
        self.has_chat_template = bool(self._inner.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        # Cleaned-up spaces would depend on what follows, and a stream cannot know that.
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self._inner.decode(list(ids), **options))

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, special tokens included. Raises `RequestError` where the template refuses it."""
        if not self.has_chat_template:
            raise RequestError("this model has no chat template; use /v1/completions", param="messages")
        try:
            given = [dict(message) for message in messages]
            return str(self._inner.apply_chat_template(given, add_generation_prompt=True, tokenize=False))
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's makers
            raise RequestError(f"the model's chat template refuses these messages: {error}", param="messages") from None


def _read(directory: Path) -> Any:
    whole = (directory / "tokenizer.json").exists()
    # It says all; a class of the model's own, which would be code to run, adds nothing to it.
    plain = whole and _has_code(directory / "tokenizer_config.json")
    reader = PreTrainedTokenizerFast if plain else AutoTokenizer
    try:
        if not whole and (directory / RANKS).exists():
            return read_tiktoken(directory)
        return reader.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{directory} has no tokenizer that can be read: {first_line(error)}") from None


def _has_code(file: Path) -> bool:
    return file.exists() and "auto_map" in read_json(file)


def generation_defaults(directory: Path, config: Any) -> tuple[SamplingParams, frozenset[int]]:
    """What generation_config.json recommends, and the token ids that end an answer; where there is none, those of
    the model's own ``config``."""
    gguf = gguf_file(directory)
    if gguf is not None:
        return sampling_defaults(gguf), end_tokens(gguf)
    if not (directory / "generation_config.json").exists():
        return SamplingParams(), _ids(getattr(config, "eos_token_id", None))
    try:
        given = GenerationConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{directory / 'generation_config.json'} cannot be read: {error}") from None
    recommended = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if (value := getattr(given, name, None)) is not None
    }
    try:
        return SamplingParams(**recommended), _ids(given.eos_token_id)
    except RequestError as error:
        raise ModelError(f"{directory / 'generation_config.json'}: {error}") from None


def _ids(given: int | list[int] | None) -> frozenset[int]:
    return frozenset([given] if isinstance(given, int) else given or [])
