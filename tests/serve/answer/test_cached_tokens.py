"""How many tokens of prompts were not computed, as each API tells it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from running import running

CHAT = {"messages": [{"role": "user", "content": "Hello, how are you?"}], "max_tokens": 4}
CACHED = 7


def body_of(url: str, path: str, **fields: Any) -> Any:
    answer = httpx.post(f"{url}{path}", json={"model": "acme/fake-1b", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def last_usage(text: str) -> list[Any]:
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return [each for event in events for each in (event.get("usage"), event.get("message", {}).get("usage")) if each]


def test_usage_tells_what_was_computed_for_earlier_requests() -> None:
    with running(FakeEngine(cached=(CACHED,))) as url:
        chat = body_of(url, "/v1/chat/completions", **CHAT)["usage"]
        text = body_of(url, "/v1/completions", prompt=["Hello", "a word and another"], max_tokens=3)["usage"]
        response = body_of(url, "/v1/responses", input="Hello", max_output_tokens=16)["usage"]
        message = body_of(url, "/v1/messages", **CHAT)["usage"]
        streamed = httpx.post(f"{url}/v1/messages", json={"model": "acme/fake-1b", **CHAT, "stream": True}).text
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = httpx.post(f"{url}/v1/chat/completions", json={"model": "acme/fake-1b", **CHAT, **options}).text
    assert chat["prompt_tokens_details"] == {"cached_tokens": CACHED}
    assert chat["prompt_tokens"] > CACHED
    assert text["prompt_tokens_details"] == {"cached_tokens": 2 * CACHED}, "of two prompts"
    assert response["input_tokens_details"]["cached_tokens"] == CACHED
    assert message["cache_read_input_tokens"] == CACHED
    assert message["input_tokens"] + CACHED == chat["prompt_tokens"]
    assert [usage["cache_read_input_tokens"] for usage in last_usage(streamed)] == [CACHED, CACHED]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in last_usage(chunks)] == [CACHED]


@pytest.mark.parametrize(("cached", "told"), [((0, CACHED), 0), ((CACHED, CACHED), CACHED), ((0,), 0)])
def test_of_several_answers_to_a_prompt_one_may_have_computed_it(cached: tuple[int, ...], told: int) -> None:
    with running(FakeEngine(cached=cached)) as url:
        usage = body_of(url, "/v1/chat/completions", **CHAT, n=2)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": told}


def test_usage_tells_what_was_guessed() -> None:
    """And what the answer may have is told to the engine, where it guesses."""
    engines = FakeEngine(guessing=True), FakeEngine()
    prediction = {"type": "content", "content": "Hello, all"}
    for engine in engines:
        with running(engine) as url:
            body_of(url, "/v1/chat/completions", **CHAT, prediction=prediction)
            wrong = {"model": "acme/fake-1b", **CHAT, "prediction": {"type": "content", "content": 7}}
            assert httpx.post(f"{url}/v1/chat/completions", json=wrong).status_code == 400
            health = httpx.get(f"{url}/health").json()
            assert health.get("speculation") == ({"drafted": 0, "accepted": 0} if engine.guessing else None)
    told = [engine.calls[0].params.predicted for engine in engines]
    assert told == [tuple(engines[0].tokenizer.encode("Hello, all", add_special_tokens=False)), ()]
    with running(engines[0]) as url:
        two = body_of(url, "/v1/chat/completions", **CHAT, n=2)["usage"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = httpx.post(f"{url}/v1/chat/completions", json={"model": "acme/fake-1b", **CHAT, **options}).text
    details = two["completion_tokens_details"]
    assert two["completion_tokens"] == 8
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (6, 4)
    (usage,) = last_usage(chunks)
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 3
