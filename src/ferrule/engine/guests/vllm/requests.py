"""Requests for vLLM's ``/v1/completions`` by token ids, and what its stream says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from ferrule.engine.guests.guest import Ask, Piece, Post
from ferrule.engine.guests.running import GuestLostError
from ferrule.engine.types import Constraint, FinishReason, Token
from ferrule.errors import RequestError

PATH = "/v1/completions"
_DONE = b"[DONE]"
_ID = "token_id:"
"""Before a token's number, where a token's text is asked for as that (``return_tokens_as_token_ids``)."""
STRUCTURED = {"json_schema": "json", "regex": "regex"}
"""Kinds of `Constraint`, and how vLLM calls them."""


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: Literal["stop", "length", "abort", "error", "repetition"] | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    error: _Error | None = None


_events = msgspec.json.Decoder(_Event)
_FAILED = ("abort", "error")
_FINISH: Mapping[str | None, FinishReason | None] = {
    None: None,
    "length": "length",
    "stop": "stop",
    "repetition": "stop",
}


def post(name: str, ask: Ask) -> Post:
    """The request for what follows ``ask``."""
    params = ask.params
    body: dict[str, Any] = {
        "model": name,
        "prompt": list(ask.tokens),
        "add_special_tokens": False,
        "max_tokens": ask.most,
        "stream": True,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "ignore_eos": params.ignore_eos,
        "stop_token_ids": list(params.stop_token_ids),
    }
    if params.seed is not None:
        body["seed"] = params.seed & ((1 << 63) - 1)  # of 64 bits with a sign there
    if params.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.logprobs is not None:
        body |= {"logprobs": params.logprobs, "return_tokens_as_token_ids": True}
    if params.constraint is not None:
        body["structured_outputs"] = _structured(params.constraint)
    return Post(PATH, body)


def _structured(constraint: Constraint) -> Mapping[str, str]:
    return {STRUCTURED[constraint.kind]: constraint.text}


class Reader:
    """Of the answer to one `post`. ``most``: alternatives that were asked for beside each token."""

    def __init__(self, ask: Ask) -> None:
        self._most = ask.params.logprobs or 0

    def read(self, event: bytes) -> Iterable[Piece]:
        """See `guest.Answer.read`."""
        if event.strip() == _DONE:
            return
        told = _events.decode(event)
        if told.error is not None:
            why = f"vllm: {told.error.message or 'it failed without a word'}"
            if str(told.error.code).startswith("4"):
                raise RequestError(why)
            # It says so as long as its server lives, when a process behind that was lost.
            raise GuestLostError(why)
        for choice in told.choices:
            if choice.finish_reason in _FAILED:
                raise GuestLostError(f"vllm ended an answer by itself ({choice.finish_reason})")
            tokens = tuple(self._tokens(choice))
            if tokens or choice.finish_reason is not None:
                yield Piece(tokens, _FINISH[choice.finish_reason])

    def _tokens(self, choice: _Choice) -> Iterable[Token]:
        ids, told = choice.token_ids or [], choice.logprobs
        if told is None:
            yield from map(Token, ids)
            return
        if len(told.token_logprobs) != len(ids):
            raise ValueError(f"{len(ids)} tokens came with {len(told.token_logprobs)} log-probabilities")
        for place, token in enumerate(ids):
            top = (told.top_logprobs[place] if told.top_logprobs else None) or {}
            best = sorted(((_id(text), value) for text, value in top.items()), key=lambda each: -each[1])
            # The chosen token is there, too, behind those that were asked for.
            yield Token(token, told.token_logprobs[place], tuple(best[: self._most]))


def _id(text: str) -> int:
    if not text.startswith(_ID):
        raise ValueError(f"{text!r} is no token's number")
    return int(text.removeprefix(_ID))


def refusal(data: bytes) -> str:
    """What an answer with another status than 200 says is wrong; empty where it says nothing."""
    try:
        told = msgspec.json.decode(data)
        message = told["error"]["message"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return ""
    return str(message)
