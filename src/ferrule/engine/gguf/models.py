"""Tokenizers of the two kinds that language models in GGUF files have: byte-level pairs, and SentencePiece's pairs."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers

from ferrule.engine.gguf.pre_tokenizers import cut_of
from ferrule.engine.gguf.vocabulary import Kind, Vocabulary
from ferrule.errors import ModelError

SPACE = "▁"
"""Character for a space in SentencePiece's tokens."""
_LONGEST_PIECE = 256
"""Characters of a token that merges are sought for."""


def byte_level(vocabulary: Vocabulary) -> Tokenizer:
    """Pairs of bytes, merged in the file's order (``gpt2``)."""
    cut = cut_of(vocabulary.cut, vocabulary.file)
    if vocabulary.merges is None:
        raise ModelError(f"{vocabulary.file} lacks tokenizer.ggml.merges; download it again")
    numbers = _numbered(vocabulary.tokens)
    there = numbers.keys()
    merges = [(a, b) for a, b in vocabulary.merges if a in there and b in there and a + b in there]
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges, ignore_merges=cut.whole))
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_pieces(vocabulary: Vocabulary) -> Tokenizer:
    """Pairs of characters, merged in the order of the merged tokens' scores; what is no token is spelled in bytes
    (``llama``, Kudo and Richardson, "SentencePiece", 2018)."""
    gemma = vocabulary.architecture.startswith("gemma")
    tokens = vocabulary.tokens
    if gemma:  # its files have runs of spaces as they are
        tokens = [SPACE * len(each) if each and not each.strip(" ") else each for each in tokens]
    numbers = _numbered(tokens)
    merges = _merges(vocabulary, tokens, numbers, by_number=gemma)
    unknown = vocabulary.special("unknown") or ("<unk>" if "<unk>" in numbers else None)
    tokenizer = Tokenizer(
        models.BPE(vocab=numbers, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = vocabulary.flag("add_space_prefix")
    prefix = not gemma if prefix is None else prefix
    spaced = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaced]) if prefix else spaced
    last = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    return tokenizer


def _numbered(tokens: list[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for number, token in enumerate(tokens):
        numbers.setdefault(token, number)
    return numbers


def _merges(
    vocabulary: Vocabulary, tokens: list[str], numbers: dict[str, int], *, by_number: bool
) -> list[tuple[str, str]]:
    """The file's, or else each way to make a token of two others: the best token first. ``by_number``: that is the
    order of the vocabulary (Gemma's scores are not that of its merges)."""
    if vocabulary.merges is not None:
        return [(a, b) for a, b in vocabulary.merges if a in numbers and b in numbers and a + b in numbers]
    scores = vocabulary.scores
    if scores is None and not by_number:
        raise ModelError(f"{vocabulary.file} lacks tokenizer.ggml.scores; download it again")
    mergeable = (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
    found: list[tuple[float, int, int, str, str]] = []
    for number, token in enumerate(tokens):
        if vocabulary.kinds[number] not in mergeable or not 1 < len(token) <= _LONGEST_PIECE:
            continue
        rank = number if by_number or scores is None else -scores[number]
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in numbers and right in numbers:
                found.append((rank, numbers[left], numbers[right], left, right))
    found.sort(key=lambda each: each[:3])
    return [(left, right) for *_, left, right in found]


MODELS: dict[str, Callable[[Vocabulary], Tokenizer]] = {
    "gpt2": byte_level,
    "llama": sentence_pieces,
    "gemma": sentence_pieces,
}
"""By ``tokenizer.ggml.model``."""
