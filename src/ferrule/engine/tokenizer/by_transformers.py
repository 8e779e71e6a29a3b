"""Tokenizers that transformers alone can read: without a ``tokenizer.json``, or with a class that adds to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ferrule.engine.tokenizer.parts import Parts
from ferrule.errors import ModelError, first_line

VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "tekken.json")
"""File patterns of the vocabularies that transformers reads."""


class _Codec:
    """`Codec` by a tokenizer of transformers."""

    def __init__(self, inner: Any) -> None:
        inner.model_max_length = sys.maxsize  # the engine itself refuses what is too long, in better words
        self.inner = inner
        self.size = int(inner.vocab_size)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        # Cleaned-up spaces would depend on what follows, and a stream cannot know that.
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self.inner.decode(list(ids), **options))

    def id_of(self, token: str) -> int | None:
        found: int | None = self.inner.convert_tokens_to_ids(token)
        return found

    def vocabulary(self) -> dict[str, int]:
        return {token: number for token, number in self.inner.get_vocab().items() if number < self.size}


def read_by_transformers(directory: Path) -> Parts:
    """Raises `ModelError` where there is none. Imports transformers and torch: a few seconds, and 200 MiB."""
    if not any(found for pattern in VOCABULARIES for found in directory.glob(pattern)):
        raise ModelError(
            f"{directory} has no tokenizer that can be read: there is no tokenizer.json, tokenizer.model or "
            "vocab.json; download the whole model"
        )
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = first_line(error)
        raise ModelError(f"{directory} has no tokenizer that can be read: {why}; download it again") from None
    template = inner.chat_template
    chat = template.get("default") if isinstance(template, dict) else template
    return Parts(_Codec(inner), inner.special_tokens_map, chat, response=getattr(inner, "response_template", None))
