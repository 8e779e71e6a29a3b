"""Requests for vLLM, and what is read from its events: these are what vLLM 0.32 sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferrule.engine.guests.guest import Ask, Piece
from ferrule.engine.guests.running import GuestLostError
from ferrule.engine.guests.vllm import requests
from ferrule.engine.types import Constraint, SamplingParams, Token
from ferrule.errors import RequestError


def event(token_ids: list[int], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": None, "token_ids": token_ids, **more}
    return json.dumps({"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]}).encode()


def asked(*prompt: int, made: tuple[int, ...] = (), **params: Any) -> Ask:
    return Ask(prompt, SamplingParams(**params), 7, made)


def read(*events: bytes, ask: Ask | None = None) -> list[Piece]:
    reader = requests.Reader(ask or asked(1))
    return [piece for each in events for piece in reader.read(each)]


def test_a_request_goes_by_token_ids() -> None:
    path, body = requests.post("model", asked(1, 2, made=(3,), seed=(1 << 64) - 1, top_k=5, stop_token_ids=(9,)))
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2, 3]  # behind what was made before a crash
    assert (body["max_tokens"], body["stream"], body["return_token_ids"]) == (7, True, True)
    assert (body["temperature"], body["top_k"], body["stop_token_ids"]) == (1.0, 5, [9])
    assert body["seed"] == (1 << 63) - 1
    assert "logprobs" not in body
    assert "structured_outputs" not in body


def test_what_else_a_request_may_ask_for() -> None:
    schema = Constraint("json_schema", '{"type": "object"}')
    _, body = requests.post("model", asked(1, logprobs=0, logit_bias={7: -1.5}, constraint=schema))
    assert body["logit_bias"] == {"7": -1.5}
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (0, True)
    assert body["structured_outputs"] == {"json": '{"type": "object"}'}


def test_tokens_come_in_any_number_at_a_time() -> None:
    found = read(event([5]), event([]), event([6, 7]), event([1], "stop"), b"[DONE]")
    assert found == [Piece((Token(5),)), Piece((Token(6), Token(7))), Piece((Token(1),), "stop")]
    assert read(event([5], "length")) == [Piece((Token(5),), "length")]


def test_log_probabilities() -> None:
    told = {
        "text_offset": [0],
        "tokens": ["token_id:5"],
        "token_logprobs": [-3.5],
        "top_logprobs": [{"token_id:5": -3.5, "token_id:8": -0.5, "token_id:9": -1.0}],
    }
    (piece,) = read(event([5], logprobs=told), ask=asked(1, logprobs=2))
    assert piece.tokens == (Token(5, -3.5, ((8, -0.5), (9, -1.0))),)
    (piece,) = read(event([5], logprobs=told), ask=asked(1, logprobs=0))
    assert piece.tokens == (Token(5, -3.5),)


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (b'{"error": {"message": "the prompt is too long", "code": 400}}', RequestError, "the prompt is too long"),
        (b'{"error": {"message": "EngineCore died", "code": 500}}', GuestLostError, "EngineCore died"),
        (b'{"error": {}}', GuestLostError, "without a word"),
        (event([], "abort"), GuestLostError, "abort"),
        (b'{"choices": [{"token_ids": ["a"]}]}', ValueError, "Expected `int`"),
        (b"<html>", ValueError, "malformed"),
        (event([5], logprobs={"tokens": [], "token_logprobs": []}), ValueError, "1 tokens came with 0"),
        (
            event([5], logprobs={"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}]}),
            ValueError,
            "'a'",
        ),
    ],
)
def test_what_is_no_answer(data: bytes, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        read(data)


def test_refusals() -> None:
    assert requests.refusal(b'{"error": {"message": "no", "type": "BadRequestError", "code": 400}}') == "no"
    for other in (b"", b"<html>", b"[]", b'{"detail": "Not Found"}', b'{"error": "no"}'):
        assert requests.refusal(other) == ""
