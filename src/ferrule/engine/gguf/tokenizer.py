"""The tokenizer and chat template of a GGUF file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, processors

from ferrule.engine.gguf.models import MODELS
from ferrule.engine.gguf.pre_tokenizers import CUTS
from ferrule.engine.gguf.vocabulary import Kind, Vocabulary, vocabulary
from ferrule.engine.tokenizer.parts import Parts, fast_parts
from ferrule.engine.types import SamplingParams
from ferrule.errors import ModelError, RequestError
from ferrule.model.gguf import read_gguf_model

_ENDS = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<|call|>", "<EOT>", "<|EOT|>", "<|end_of_turn|>", "<|eot|>", "<|user|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>",
    "<|return|>",
})  # fmt: skip
"""Control tokens that end an answer whatever a file says: many files name only one of several. (``<|user|>`` ends those
of GLM, whose assistant never speaks for the user.)"""
_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys below ``general.sampling`` -> ours."""


def read_tokenizer(file: Path) -> Parts:
    """Raises `ModelError` where the file has none, or one of a kind that is not run here."""
    found = vocabulary(read_gguf_model(file, arrays=True))
    build = MODELS.get(found.model)
    if build is None:
        raise ModelError(
            f"{file} has a tokenizer of the kind {found.model[:40]!r}, which is not run here (only "
            f"{', '.join(MODELS)}); use the directory of the model's safetensors"
        )
    try:
        tokenizer = build(found)
        _add_special(tokenizer, found)
        _add_ends(tokenizer, found)
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises nothing narrower
        raise ModelError(f"{file} has a tokenizer that cannot be built: {error}; download it again") from None
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {ours: token for ours, theirs in roles.items() if (token := found.special(theirs)) is not None}
    template = found.values.get("tokenizer.chat_template")
    parts = fast_parts(tokenizer, special, template if isinstance(template, str) and template else None)
    return replace(parts, ends=_end_tokens(found))


def _add_special(tokenizer: Tokenizer, found: Vocabulary) -> None:
    """Tokens that are never made by merging: those of control, and those that its makers added."""
    control, added = [], []
    for token, kind in zip(found.tokens, found.kinds, strict=True):
        if kind == Kind.CONTROL and token:
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == Kind.USER_DEFINED and token and tokenizer.token_to_id(token) is not None:
            added.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(added)


def _add_ends(tokenizer: Tokenizer, found: Vocabulary) -> None:
    """Have a text begin and end with the tokens that the model expects."""
    begin = found.flag("add_bos_token")
    if begin is None:
        cut = CUTS.get(found.cut)
        begin = cut is not None and cut.begins if found.model == "gpt2" else True
    bos, eos = found.special("bos") if begin else None, found.special("eos") if found.flag("add_eos_token") else None
    if bos is None and eos is None:
        return
    pieces = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    second = [*([f"{bos}:1"] if bos else []), "$B:1", *([f"{eos}:1"] if eos else [])]
    numbers = [(each, found.tokens.index(each)) for each in {bos, eos} if each is not None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, pair=pieces + second, special_tokens=numbers
    )


def _end_tokens(found: Vocabulary) -> frozenset[int]:
    """The tokens that end an answer: those that the file names, and control tokens known for it."""
    named = {token for role in ("eos", "eot", "eom") if (token := found.special(role)) is not None}
    known = {
        token
        for token, kind in zip(found.tokens, found.kinds, strict=True)
        if token in _ENDS and kind in (Kind.CONTROL, Kind.USER_DEFINED)
    }
    if {"<|return|>", "<|call|>", "<|end|>"} <= known:  # Harmony: a message ends there, and the answer may go on
        known.discard("<|end|>")
    return frozenset(number for number, token in enumerate(found.tokens) if token in named | known)


def sampling_defaults(file: Path) -> SamplingParams:
    """Sampling defaults that the file recommends (``general.sampling``). Raises `ModelError` where they cannot be."""
    values = read_gguf_model(file).values
    given = {ours: values[key] for theirs, ours in _SAMPLING.items() if (key := f"general.sampling.{theirs}") in values}
    try:
        return SamplingParams(**given)
    except (RequestError, TypeError) as error:
        raise ModelError(f"{file}: general.sampling cannot be: {error}") from None
