"""Requests to ``llama-server`` and its answers (``/completion``, tools/server/README.md of llama.cpp)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ferrule.engine.guests.guest import Ask, Piece, Post
from ferrule.engine.types import FinishReason, SamplingParams, Token
from ferrule.errors import EngineError, RequestError

PATH = "/completion"
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""In the order in which the built-in engine applies them; all others that a build has are off."""


class Alternative(msgspec.Struct):
    """A token and its log-probability."""

    id: int
    logprob: float


class Told(Alternative):
    """Of the token that was drawn."""

    top_logprobs: list[Alternative] = []


class Fault(msgspec.Struct):
    message: str = ""
    code: int = 500
    type: str = ""


class Event(msgspec.Struct):
    """What an event, or an answer in one piece, says; of the last event ``stop_type``."""

    tokens: list[int] = []
    content: str = ""
    stop: bool = False
    stop_type: str = "none"
    tokens_predicted: int = 0
    completion_probabilities: list[Told] = []
    error: Fault | None = None


_FINISH: Mapping[str, FinishReason] = {"eos": "stop", "limit": "length"}
_events = msgspec.json.Decoder(Event)


def post_of(ask: Ask, *, stream: bool) -> Post:
    params = ask.params
    body: dict[str, Any] = {
        "prompt": ask.tokens,
        "n_predict": ask.most,
        "stream": stream,
        "return_tokens": True,
        "samplers": _SAMPLERS,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": params.seed,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": len(ask.tokens) + ask.most if params.repetition_penalty != 1 else 0,
        "n_probs": _reported(params),
        "ignore_eos": params.ignore_eos,
    }
    if params.logit_bias:
        body["logit_bias"] = sorted(params.logit_bias.items())
    if params.constraint is not None:
        body["json_schema"] = json.loads(params.constraint.text)
    return Post(PATH, body)


def _reported(params: SamplingParams) -> int:
    """Alternatives to ask for: the drawn token's own number comes only beside one."""
    return 0 if params.logprobs is None else max(1, params.logprobs)


class Stream:
    """`ferrule.engine.guests.guest.Answer`.

    An event comes with each token, but for those in the midst of a character: of these only their number is told, by
    that of all tokens so far. A token without text may be an end token, which the next event says: so long it is kept.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._count = 0
        self._kept: Token | None = None

    def read(self, event: bytes) -> Iterator[Piece]:
        told = _decoded(event)
        finish = _finish(told) if told.stop else None
        kept = () if self._kept is None else (self._kept,)
        self._kept = None
        tokens = _tokens(told, self._params)
        untold = told.tokens_predicted - self._count - len(tokens)
        if untold < 0:
            raise ValueError(f"{told.tokens_predicted} tokens after {self._count} and {len(tokens)} more")
        self._count = told.tokens_predicted
        if told.stop:
            if untold and kept:
                yield Piece(kept)
                kept = ()
            yield Piece((*kept, *tokens), finish, untold)
            return
        if kept:
            yield Piece(kept)
        if untold or told.content or not tokens:
            yield Piece(tokens, None, untold)
            return
        *first, self._kept = tokens
        if first:
            yield Piece(tuple(first))


def whole_of(ask: Ask, data: bytes) -> Piece:
    """An answer in one piece."""
    told = _decoded(data)
    return Piece(_tokens(told, ask.params), _finish(told))


def _decoded(data: bytes) -> Event:
    told = _events.decode(data)
    if told.error is not None:
        if told.error.code == 400:
            raise RequestError(f"llama.cpp: {told.error.message}")
        raise EngineError(f"llama.cpp: {told.error.message or 'an error without words'}")
    return told


def _finish(told: Event) -> FinishReason:
    finish = _FINISH.get(told.stop_type)
    if finish is None:
        raise ValueError(f"an end for the reason {told.stop_type!r}")
    return finish


def _tokens(told: Event, params: SamplingParams) -> tuple[Token, ...]:
    if params.logprobs is None:
        return tuple(Token(each) for each in told.tokens)
    known = told.completion_probabilities
    if len(known) != len(told.tokens):
        raise ValueError(f"{len(told.tokens)} tokens with {len(known)} probabilities")
    return tuple(
        Token(each, own.logprob, tuple((one.id, one.logprob) for one in own.top_logprobs[: params.logprobs]))
        for each, own in zip(told.tokens, known, strict=True)
    )
