"""Exchange of ranks that share out keys and values by pages: how tokens are shared out, and bytes of a layer.

Two forms give the same. Keys and values could go round (ring attention, Liu and others 2023): each rank gets those of
all others, once for every piece of a prompt. Or queries and what comes of them: each rank attends for all tokens to the
pages that it has, and sends the partial results, which are merged by their highest logits and sums. The first moves as
much as the context is long, the second as much as the piece is; the engine does the second, which is less from a
context on that is about as many pieces long as there are query heads for each key/value head.
"""

from __future__ import annotations

from ferrule.model.layer import AttentionSpec

LEAST_ROWS = 16
"""Fewer tokens of a rank are not worth sharing out: steps take as long as weights take to read, on each rank."""
PAGE_TOKENS = 16
BLOCK_PAGES = 4
"""Of a block of the engine's prefix cache: 2 or 4 ranks have as many of each."""
_SOFTMAX_BYTES = 8
"""Of each head and token: the highest logit and the sum of exponentials."""


def shares_out(tokens: int, ranks: int) -> bool:
    """Whether each of ``ranks`` computes a part of a batch of ``tokens``; else each computes all of them, and attends
    to its own pages."""
    return ranks > 1 and tokens >= LEAST_ROWS * ranks


def gathered_bytes(attention: AttentionSpec, element_bytes: float) -> float:
    """Of a token that is shared out: its queries, and its key and value, which all ranks get."""
    if attention.kind == "latent":
        return (attention.query_heads + 1) * attention.latent_width * element_bytes
    of_cache = attention.key_value_heads * (attention.key_width + attention.value_width)
    return (attention.query_heads * attention.key_width + of_cache) * element_bytes


def partial_bytes(attention: AttentionSpec, element_bytes: float) -> float:
    """Of a token: the partial results of a rank."""
    width = attention.latent_rank if attention.kind == "latent" else attention.value_width
    return attention.query_heads * (width * element_bytes + _SOFTMAX_BYTES)
