"""Parts of a tokenizer, the same for every file format that it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer


class Codec(Protocol):
    """Text to token ids and back. ``size``: tokens of the vocabulary, without those that were added to it."""

    size: int

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...

    def id_of(self, token: str) -> int | None:
        """None for what is no token."""
        ...

    def vocabulary(self) -> dict[str, int]:
        """Ids of the tokens of the vocabulary, without those that were added to it."""
        ...


class FastCodec:
    """`Codec` by the tokenizers library. Texts are neither cut nor filled up, whatever ``inner`` was saved with."""

    def __init__(self, inner: Tokenizer) -> None:
        inner.no_truncation()
        inner.no_padding()
        self.inner = inner
        self.size = inner.get_vocab_size(with_added_tokens=False)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Other than `encode` this lets other threads run, and it keeps no places of tokens in the text.
        (encoded,) = self.inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self.inner.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def id_of(self, token: str) -> int | None:
        found: int | None = self.inner.token_to_id(token)
        return found

    def vocabulary(self) -> dict[str, int]:
        return dict(self.inner.get_vocab(with_added_tokens=False))


@dataclass(frozen=True)
class Parts:
    """A tokenizer as it was read. ``special``: the tokens that have a part, by its name (``eos_token``), as chat
    templates see them. ``template``: the chat template, None where there is none. ``ends``: ids of tokens that end an
    answer, beside the ``eos_token``. ``response``: the response template, which says how answers are read."""

    codec: Codec
    special: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    ends: frozenset[int] = frozenset()
    response: Any = None


def fast_parts(tokenizer: Tokenizer, special: Mapping[str, str], template: str | None) -> Parts:
    """`Parts` of a ``tokenizer``, to which those of the ``special`` tokens are added that it has not as such."""
    there = {each.content for each in tokenizer.get_added_tokens_decoder().values()}
    lacking = [text for text in dict.fromkeys(special.values()) if text not in there]
    tokenizer.add_tokens([AddedToken(text, special=True) for text in lacking])
    return Parts(FastCodec(tokenizer), special, template)
