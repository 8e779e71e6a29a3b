"""BERT's tokenizers: whether a ``tokenizer.json`` is what transformers' class makes of its vocabulary and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

CLASSES = frozenset({"BertTokenizer", "BertTokenizerFast"})
_ROLES = frozenset({"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
"""For which the class has defaults, where they are not told."""


def as_stored(
    tokenizer: Tokenizer, special: Mapping[str, str], *, lower: bool, chinese: bool, accents: bool | None
) -> bool:
    """Whether transformers makes the same tokens of texts. ``special``: the tokens that have a part, by its name.
    ``lower``: texts are made lower case; ``chinese``: its characters are words; ``accents``: they are stripped, by
    default those of what is made lower case."""
    if not special.keys() >= _ROLES:
        return False
    model = {
        "type": "WordPiece",
        "unk_token": special["unk_token"],
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    ends = [tokenizer.token_to_id(special[role]) for role in ("cls_token", "sep_token")]
    return (
        model.items() <= {name: value for name, value in _state(tokenizer.model).items() if name != "vocab"}.items()
        and _state(tokenizer.normalizer) == _state(normalizers.BertNormalizer(True, chinese, accents, lower))
        and _state(tokenizer.pre_tokenizer) == _state(pre_tokenizers.BertPreTokenizer())
        and _state(tokenizer.decoder) == _state(decoders.WordPiece("##"))
        and tokenizer.encode("").ids[:2] == ends  # what follows is padding
    )


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())
