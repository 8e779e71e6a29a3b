"""From a request's fields to the engine's sampling parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ferrule.engine import SamplingParams
from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import ChatRequest, CompletionRequest

SEED_STEP = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: consecutive multiples lie far apart (Knuth, TAOCP vol. 3, 6.4)."""

SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
)


def sampling_params(
    body: ChatRequest | CompletionRequest, defaults: SamplingParams, *, vocab_size: int
) -> SamplingParams:
    """``defaults`` with what ``body`` says. Raises `RequestError` for token ids outside of the vocabulary."""
    given: dict[str, Any] = {name: value for name in SAME_NAME if (value := getattr(body, name)) is not None}
    if body.top_p == 0:  # of the likeliest tokens the fewest: one
        given |= {"top_p": 1.0, "top_k": 1}
    elif body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)  # others say "off" with -1
    if body.logit_bias is not None:
        given["logit_bias"] = logit_bias(body.logit_bias, vocab_size)
    if body.stop_token_ids is not None:
        for token in body.stop_token_ids:
            check_token(token, vocab_size, "stop_token_ids")
        given["stop_token_ids"] = (*defaults.stop_token_ids, *body.stop_token_ids)
    limit = body.max_tokens
    if isinstance(body, ChatRequest):
        limit = limit if body.max_completion_tokens is None else body.max_completion_tokens
        given["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    else:
        given["logprobs"] = body.logprobs
        given["prompt_logprobs"] = body.logprobs if body.echo else None
    if limit is not None:
        given["max_tokens"] = limit
    return replace(defaults, **given)


MOST_DIGITS = 9
"""Digits of a token id; no vocabulary is larger, and Python refuses to read endless numbers."""


def logit_bias(given: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """``given`` with its keys as token ids. Biases lie between -100 and 100."""
    biases = {}
    for key, bias in given.items():
        if not key.isascii() or not key.isdigit() or len(key) > MOST_DIGITS:
            raise RequestError(f"logit_bias: keys must be token ids, not {key[:40]!r}", param="logit_bias")
        check_token(int(key), vocab_size, "logit_bias")
        if not -100 <= bias <= 100:
            raise RequestError(f"logit_bias: {bias} is not between -100 and 100", param="logit_bias")
        biases[int(key)] = bias
    return biases


def check_token(token: int, vocab_size: int, field: str) -> None:
    """Raise `RequestError` unless the model knows ``token``."""
    if not 0 <= token < vocab_size:
        raise RequestError(
            f"{field}: {token} is not a token of this model, which has tokens 0 to {vocab_size - 1}", param=field
        )


def derived_seed(seed: int | None, choice: int) -> int | None:
    """The seed of answer ``choice`` of a request: the first has the request's own, so that n=1 is a prefix of n=2."""
    return None if seed is None else (seed + choice * SEED_STEP) % 2**63
