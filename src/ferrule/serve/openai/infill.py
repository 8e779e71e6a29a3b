"""Prompts for filling in the middle (Bavarian and others, 2022), by the special tokens that a model has for it."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.engine import Tokenizer
from ferrule.serve.openai.schemas import unsupported

Ids = tuple[int, ...]


@dataclass(frozen=True)
class InfillForm:
    """Tokens ``before`` and ``between`` the two texts and ``after`` them; ``suffix_first``: the suffix is the first.
    ``ends``: tokens that end an answer, where the model has them."""

    before: str
    between: str
    after: str = ""
    suffix_first: bool = False
    ends: tuple[str, ...] = ()


_FILES = ("<|file_sep|>", "<|file_separator|>")
FORMS = (
    InfillForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ends=("<|endoftext|>", "<|fim_pad|>", *_FILES)),
    InfillForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=("<|endoftext|>", "<file_sep>")),
    InfillForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<|endoftext|>",)),
    InfillForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ends=("<｜end▁of▁sentence｜>", "<|EOT|>")),
    InfillForm("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    InfillForm("[SUFFIX]", "[PREFIX]", suffix_first=True),
)
"""As the models' own cards give them: Qwen2.5-Coder and CodeGemma; StarCoder and Granite; SantaCoder; DeepSeek-Coder;
CodeLlama; Codestral."""


def infill(tokenizer: Tokenizer, prefix: Ids, suffix: Ids) -> tuple[Ids, Ids]:
    """The prompt after which a model writes what stands between ``prefix`` and ``suffix``, both without special
    tokens; and the tokens by which it ends that. Raises `RequestError` where the model has no tokens for this."""
    for form in FORMS:
        marks = [_token(tokenizer, name) for name in (form.before, form.between, form.after) if name]
        if None in marks:
            continue
        known = [[mark] for mark in marks if mark is not None]
        texts = [suffix, prefix] if form.suffix_first else [prefix, suffix]
        prompt = [*tokenizer.encode(""), *known[0], *texts[0], *known[1], *texts[1], *(known[2] if form.after else ())]
        ends = [_token(tokenizer, name) for name in form.ends]
        return tuple(prompt), tuple(each for each in ends if each is not None)
    raise unsupported("suffix", "this model has no special tokens for filling in; it can only continue a text")


def _token(tokenizer: Tokenizer, name: str) -> int | None:
    """The one token ``name``, if the tokenizer has it."""
    found = tokenizer.encode(name, add_special_tokens=False)
    if len(found) != 1:
        return None
    written = tokenizer.decode(found, skip_special_tokens=False)
    return found[0] if written.replace("▁", " ").strip() == name.replace("▁", " ").strip() else None
