"""Choose tokens from logits: penalties and biases here, temperature, cuts and chance in the native library."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import torch
from torch import Tensor

from ferrule._native import sample
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15

LOWEST_LOGPROB = -9999.0
"""Reported log-probability of a token that cannot come, as OpenAI's API does: JSON has no infinities."""
_NO_TOKEN = -1


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
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.drawn = drawn

    def choose(self, logits: Tensor, tokens: Tokens[int], prompt: int) -> Choice:
        """The next token, from ``logits`` (vocabulary,) after ``tokens``, the first ``prompt`` of which were given.
        Raises `EngineError` where no logit is a number."""
        params, scores = self.params, self._penalised(logits.float(), tokens, prompt).contiguous()
        self.drawn += 1
        chance = (mixed(self.seed, self.drawn) >> 11) * 2.0**-53  # as many bits as a float has
        token = sample(
            scores.data_ptr(), len(scores), params.temperature, params.top_k, params.top_p, params.min_p, chance
        )
        if token == _NO_TOKEN:
            raise EngineError("the model's logits are not numbers; try --dtype bfloat16 or float32")
        if self.params.logprobs is None:
            return Choice(token)
        logprobs = logits.log_softmax(dim=-1).nan_to_num(LOWEST_LOGPROB).clamp_min(LOWEST_LOGPROB)
        values, ids = logprobs.topk(min(self.params.logprobs, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        return Choice(token, float(logprobs[token]), top)

    def _penalised(self, logits: Tensor, tokens: Tokens[int], prompt: int) -> Tensor:
        """Apply the repetition penalty (prompt and answer) and OpenAI's (answer only), then the biases.

        Repetition: a logit above zero is divided by it, one below multiplied (Keskar and others, "CTRL", 2019).
        OpenAI's: logit -= presence * (count > 0) + frequency * count, as its API reference defines them.
        """
        params = self.params
        if params.repetition_penalty != 1.0 and tokens:
            ids = torch.tensor(tokens)
            seen, logits = logits[ids], logits.clone()
            logits[ids] = torch.where(seen < 0, seen * params.repetition_penalty, seen / params.repetition_penalty)
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
    """64 bits that look unrelated for seeds and places that are near to each other: the finaliser of SplitMix64
    (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied to each in turn."""
    state = _finalised(seed & _WORD)
    return _finalised((state + place * _GOLDEN) & _WORD)


def _finalised(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
