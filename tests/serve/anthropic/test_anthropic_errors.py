"""Everything that goes wrong, as Anthropic's client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from messages_client import HELLO, MODEL, WEATHER, client_of, scripted

from ferrule.errors import ModelUnavailable
from ferrule.serve.answer import service

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
BASH = {"type": "bash_20250124", "name": "bash"}


@pytest.fixture(scope="module")
def client() -> Iterator[Anthropic]:
    with client_of(scripted()) as client:
        yield client


def ask(client: Anthropic, **fields: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 20, **fields})


def turn(*content: Any, role: str = "user") -> Any:
    return {"messages": [*HELLO, {"role": role, "content": list(content)}]}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": -1}, "max_tokens: Input should be greater"),
        ({"messages": []}, "messages: List should have at least 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content: block 0"),
        ({"extra_body": {"temperature": 3}}, "temperature: "),
        ({"stop_sequences": [""]}, "stop_sequences: a stop string"),
        (turn(IMAGE), "messages.1.content.0: not supported: this model takes text only"),
        (turn({"type": "audio"}), "messages.1.content.0: not supported: blocks of type 'audio'"),
        (
            turn({"type": "tool_result", "tool_use_id": "1", "content": ["x"]}),
            "messages.1.content.0.content: block 0 must",
        ),
        (turn({"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}), "messages.1.content.0.content.0: not"),
        (turn({"type": "tool_use", "id": "1", "name": "f", "input": "{}"}, role="assistant"), "content.0.input: must"),
        (turn({"type": "document", "source": {"type": "base64"}}), "documents of type 'base64' cannot be read"),
        ({"tools": [SEARCH]}, "tools: not supported: web_search_20250305 runs on Anthropic's servers"),
        ({"tools": [WEATHER, BASH]}, "tools.1: not supported: bash_20250124 is known to Anthropic's models"),
        ({"tools": [{"name": "f"}]}, "tools.0: not supported: a tool needs a name and an input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}}, "there is no tool 'f' of yours"),
        ({"extra_body": {"mcp_servers": [{"type": "url"}]}}, "mcp_servers: not supported"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "wrong"}}}},
            "response_format.json_schema.schema: ",
        ),
    ],
)
def test_a_wrong_value_is_named(client: Anthropic, fields: Any, told: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, **fields)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert told in body["error"]["message"]
    assert body["request_id"] == caught.value.request_id


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words() -> None:
    with client_of(scripted("hi", max_context=8)) as client, pytest.raises(anthropic.BadRequestError) as caught:
        ask(client)
    body: Any = caught.value.body
    assert body["error"]["message"].startswith("prompt is too long: the prompt has ")


def test_an_answer_in_channels_is_not_begun_by_others() -> None:
    with client_of(scripted("hi"), tool_parser="harmony") as client, pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, **turn({"type": "text", "text": "It"}, role="assistant"))
    assert "an answer in channels cannot go on" in str(caught.value)


def test_what_is_left_out_is_named(client: Anthropic) -> None:
    answer = httpx.post(f"{client.base_url}/v1/messages", json={"messages": HELLO})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "max_tokens: this field is required")


def test_an_unknown_model_says_what_to_set(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="ANTHROPIC_MODEL") as caught:
        ask(client, model="claude-opus-4-8")
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    assert "make 'claude-opus-4-8' an alias" in body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError, match="ANTHROPIC_MODEL"):
        client.messages.count_tokens(model="claude-haiku-4-5", messages=HELLO)


def test_a_key_comes_in_either_header() -> None:
    with client_of(scripted("hi"), key="sesame") as keyed:
        assert ask(keyed).content
        bearer = Anthropic(base_url=str(keyed.base_url), auth_token="sesame", api_key=None, max_retries=0)
        assert ask(bearer).content
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask(keyed.with_options(api_key="wrong"))
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"
        assert "x-api-key" in body["error"]["message"]


def test_what_the_engine_cannot_do_has_its_status() -> None:
    away = ModelUnavailable("a host is gone", retry_after=7)
    with client_of(scripted(away=away)) as client, pytest.raises(anthropic.InternalServerError) as caught:
        ask(client)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "7")
    body: Any = caught.value.body
    assert body["error"] == {"type": "overloaded_error", "message": "a host is gone"}
    with client_of(scripted(), max_sequences=0) as client, pytest.raises(anthropic.BadRequestError):
        ask(client)


def test_a_failure_within_a_stream_is_an_event() -> None:
    with (
        client_of(scripted("words and words", fail_after=4)) as client,
        client.messages.stream(model=MODEL, messages=HELLO, max_tokens=20) as stream,
        pytest.raises(anthropic.APIStatusError, match="rank 1") as caught,
    ):
        stream.until_done()
    body: Any = caught.value.body
    assert body["error"]["type"] == "overloaded_error"


def test_a_long_silence_has_ping_events() -> None:
    with patch.object(service, "PING_SECONDS", 0.05), client_of(scripted("words", delay=0.2)) as client:
        body = {"messages": HELLO, "max_tokens": 2, "stream": True}
        with httpx.stream("POST", f"{client.base_url}/v1/messages", json=body, timeout=10) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[:2] == ["event: ping", 'data: {"type":"ping"}']
        assert lines[-1] == 'data: {"type":"message_stop"}'
        with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=2) as stream:
            assert stream.get_final_message().stop_reason == "max_tokens"
