"""Encoders by ``config.json``: models whose tokens see later ones too. They make vectors, and no text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

ENCODERS = frozenset({
    "bert", "camembert", "distilbert", "electra", "eurobert", "gte", "modernbert", "mpnet", "nomic_bert", "roberta",
    "xlm-roberta",
})  # fmt: skip
"""By transformers' ``model_type``. Decoders may be made encoders, too, as EmbeddingGemma was of Gemma 3."""

WHOLE = "an encoder runs on one rank"
"""Reason why none is split."""

_AFTER_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})
"""Families whose first position is the one behind that of padding."""
_UNUSED = re.compile(
    r"(?:^|\.)(?:pooler|cls|lm_head|classifier|decoder|qa_outputs|vocab_(?:transform|layer_norm|projector)"
    r"|(?:generator|discriminator)_\w+)\.|^head\."
)
_PLACED = frozenset({"alibi", "relative_key", "relative_key_query"})
"""Kinds of positions that transformers' classes no longer have."""


def is_encoder(field: Callable[[str], Any]) -> bool:
    """``field``: the value of a field of the configuration by its name, or None."""
    if field("is_causal") is False or field("use_bidirectional_attention") in (True, "all"):
        return True
    return field("model_type") in ENCODERS and not field("is_decoder")


def encoder_refusal(field: Callable[[str], Any]) -> str | None:
    """Reason why an encoder's vectors would not be those that it was trained for, or None."""
    if any("Classification" in str(each) for each in field("architectures") or ()):
        return "classifies texts or scores pairs of them (a reranker), which is not run here"
    positions = field("position_embedding_type")
    return f"tells positions in a way that is not run here ({positions})" if positions in _PLACED else None


def padding_positions(field: Callable[[str], Any]) -> int:
    """Number of an encoder's first positions that no token has."""
    if field("model_type") not in _AFTER_PADDING:
        return 0
    padding = field("pad_token_id")
    return 1 + (padding if isinstance(padding, int) else 1)


def is_unused(name: str) -> bool:
    """Whether tensor ``name`` of an encoder's files is of what stands on its hidden states: output layers, classifiers,
    BERT's pooler."""
    return _UNUSED.search(name) is not None
