"""Filling in: a completion between ``prompt`` and ``suffix``, by the marks that code models have learned for it.

The order prefix, suffix, middle is that of "Efficient Training of Language Models to Fill in the Middle" (2022), and of
the models' own documentation.
"""

from __future__ import annotations

from typing import Final

from ferrule.engine import Engine
from ferrule.serve.openai.schemas import unsupported

MARKS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)
"""Of prefix, suffix and middle."""


def infilled(engine: Engine, prompt: str | list[int], suffix: str) -> str:
    """The prompt by which the model writes what is between ``prompt`` and ``suffix``. Raises `RequestError` where its
    vocabulary has no marks for that, and for a prompt of token ids."""
    if not isinstance(prompt, str):
        raise unsupported("suffix", "it goes with prompts that are texts")
    for marks in MARKS:
        if all(len(engine.tokenizer.encode(mark, add_special_tokens=False)) == 1 for mark in marks):
            before, after, middle = marks
            return f"{before}{prompt}{after}{suffix}{middle}"
    raise unsupported("suffix", "this model has no tokens for filling in; text can only be continued")
