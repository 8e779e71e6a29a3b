"""Choose tokens from logits. The cuts are transformers' own; what they lack (OpenAI's penalties) is added."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15

LOWEST_LOGPROB = -9999.0
"""What is reported of a token that cannot come, as OpenAI's API does: JSON has no infinities."""
COLD = 1e-5
"""Below this temperature only the likeliest token is left, and dividing by it would leave the range of float32."""


@dataclass(frozen=True)
class Choice:
    """A chosen token, its log-probability before temperature and cuts, and the likeliest alternatives."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one sequence; the same seed gives the same tokens.

    A token's random number depends on nothing but the seed and its place in the answer, so an answer can go on in
    another process. ``drawn``: how many of its tokens there are already.
    """

    def __init__(self, params: SamplingParams, drawn: int = 0) -> None:
        self.params = params
        self.generator = torch.Generator()
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.drawn = drawn
        self.greedy = params.temperature < COLD
        self.warpers = LogitsProcessorList()
        if not self.greedy:
            if params.temperature != 1.0:
                self.warpers.append(TemperatureLogitsWarper(params.temperature))
            if params.top_k > 0:
                self.warpers.append(TopKLogitsWarper(params.top_k))
            if params.top_p < 1.0:
                self.warpers.append(TopPLogitsWarper(params.top_p))
            if params.min_p > 0.0:
                self.warpers.append(MinPLogitsWarper(params.min_p))
        self.repetition = (
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty) if params.repetition_penalty != 1.0 else None
        )

    def choose(self, logits: Tensor, tokens: Tokens[int], prompt: int) -> Choice:
        """The next token, from ``logits`` (vocabulary,) after ``tokens``, the first ``prompt`` of which were given."""
        scores = self._penalised(logits, tokens, prompt)
        self.drawn += 1
        if self.greedy:
            token = int(scores.argmax())
        else:
            if self.warpers:
                scores = self.warpers(torch.empty(1, 0, dtype=torch.long), scores.unsqueeze(0))[0]
            token = self._draw(scores)
        if self.params.logprobs is None:
            return Choice(token)
        logprobs = logits.log_softmax(dim=-1).nan_to_num(LOWEST_LOGPROB).clamp_min(LOWEST_LOGPROB)
        values, ids = logprobs.topk(min(self.params.logprobs, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        return Choice(token, float(logprobs[token]), top)

    def _draw(self, scores: Tensor) -> int:
        self.generator.manual_seed(mixed(self.seed, self.drawn))
        try:
            return int(torch.multinomial(scores.softmax(dim=-1), 1, generator=self.generator))
        except RuntimeError:  # penalties as extreme as 1e-40 make scores infinite; one request must not end the others
            if scores.isnan().all():
                raise EngineError("the model's logits are not numbers; try --dtype bfloat16 or float32") from None
            return int(scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf")).argmax())

    def _penalised(self, logits: Tensor, tokens: Tokens[int], prompt: int) -> Tensor:
        """Apply the repetition penalty (prompt and answer) and OpenAI's (answer only), then the biases.

        OpenAI's: logit -= presence * (count > 0) + frequency * count, as its API reference defines them.
        """
        params = self.params
        if self.repetition is not None:
            logits = self.repetition(torch.tensor([tokens]), logits.unsqueeze(0).clone())[0]
        penalties = Counter(tokens[prompt:]) if params.presence_penalty or params.frequency_penalty else {}
        if not penalties and not params.logit_bias:
            return logits
        scores = logits.clone()
        if penalties:
            ids = torch.tensor(list(penalties))
            counts = torch.tensor(list(penalties.values()), dtype=scores.dtype)
            scores[ids] -= params.presence_penalty + params.frequency_penalty * counts
        for token, bias in params.logit_bias.items():
            if 0 <= token < len(scores):
                scores[token] += bias
        return scores


def mixed(seed: int, place: int) -> int:
    """63 bits that look unrelated for seeds and places that are near to each other: the finaliser of SplitMix64
    (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied to each in turn."""
    state = _finalised(seed & _WORD)
    return _finalised((state + place * _GOLDEN) & _WORD) >> 1


def _finalised(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
