"""The prompt repeated before its completion, with the log-probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.engine import PromptToken
from ferrule.serve.answer.text import Detokenizer, Vocabulary
from ferrule.serve.openai.objects import TextLogprobs


@dataclass(frozen=True)
class Echo:
    """``text`` of a prompt, and its ``tokens``; none where it is not repeated."""

    text: str
    tokens: tuple[int, ...]


def echo_logprobs(vocabulary: Vocabulary, echo: Echo, scores: Sequence[PromptToken]) -> TextLogprobs:
    """``scores``: of all tokens but the first, which nothing precedes: it has none, as OpenAI writes it."""
    decoded, offsets, at = Detokenizer(vocabulary), [], 0
    for token in echo.tokens:
        offsets.append(at)
        at += len(decoded.push(token))
    top: list[dict[str, float] | None] = [None]
    for token, score in zip(echo.tokens[1:], scores, strict=True):
        top.append(named(vocabulary, [*score.top, (token, score.logprob)]))
    texts = [vocabulary.text_of(token) for token in echo.tokens]
    return TextLogprobs(texts, [None, *(score.logprob for score in scores)], top, offsets)


def named(vocabulary: Vocabulary, tokens: Sequence[tuple[int, float]]) -> dict[str, float]:
    """By their texts. Of several with one text the first counts."""
    found: dict[str, float] = {}
    for token, logprob in tokens:
        found.setdefault(vocabulary.text_of(token), logprob)
    return found
