"""Anthropic's API over HTTP, with its own client and a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import Anthropic
from fake_engine import TEXT, FakeEngine, sentencepiece_like
from messages_client import CALLS, FIRST, HELLO, MODEL, SECOND, WEATHER, client_of, prompt_of, scripted

ASK: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 200}


def plain(message: Any) -> list[Any]:
    """Blocks of a message, without ids and signatures."""
    return [
        block.input if block.type == "tool_use" else block.thinking if block.type == "thinking" else block.text
        for block in message.content
    ]


def streamed(client: Anthropic, **fields: Any) -> tuple[Any, list[Any]]:
    """The message that the client puts together of a stream, and the raw events that it got."""
    with client.messages.stream(**{**ASK, **fields}) as stream:
        raw = [event for event in stream if event.type.startswith(("message_", "content_block_"))]
        return stream.get_final_message(), raw


def test_a_whole_answer() -> None:
    engine = scripted(TEXT)
    with client_of(engine) as client:
        message = client.messages.create(
            **ASK,
            system="Be brief.",
            metadata={"user_id": "me"},
            extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7},
        )
    assert (message.type, message.role, message.model, message.stop_reason) == (
        "message",
        "assistant",
        MODEL,
        "end_turn",
    )
    assert message.id.startswith("msg_")
    assert plain(message) == [TEXT]
    assert prompt_of(engine) == "<|system|>Be brief.<|end|><|user|>Weather?<|end|><|assistant|>"
    (call,) = engine.calls
    assert (call.params.temperature, call.params.top_p, call.params.top_k) == (0.5, 0.9, 7)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(call.prompt), call.made)
    assert (message.usage.cache_read_input_tokens, message.usage.cache_creation_input_tokens) == (0, 0)


def test_why_an_answer_ends() -> None:
    with client_of(scripted(TEXT)) as client:
        cut = client.messages.create(**{**ASK, "max_tokens": 3})
        assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 3)
        stopped = client.messages.create(**ASK, stop_sequences=["lazy", " fox", "zzz"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " fox")
        assert plain(stopped) == ["The quick brown"]
        message, _ = streamed(client, stop_sequences=[" fox"])
        assert (message.stop_reason, message.stop_sequence, plain(message)) == (
            "stop_sequence",
            " fox",
            ["The quick brown"],
        )
        nothing = client.messages.create(**{**ASK, "max_tokens": 0})
        assert (nothing.content, nothing.stop_reason) == ([], "max_tokens")
    with client_of(scripted(TEXT, max_context=40)) as client:
        assert client.messages.create(**ASK).stop_reason == "model_context_window_exceeded"


def test_a_stream_has_the_events_of_every_block() -> None:
    engine = scripted()
    with client_of(engine) as client:
        message, raw = streamed(client, tools=[WEATHER])
        whole = client.messages.create(**ASK, tools=[WEATHER])
    assert plain(message) == plain(whole) == ["Grüße?", "I look.", FIRST, SECOND]
    assert message.stop_reason == whole.stop_reason == "tool_use"
    assert message.usage.input_tokens == whole.usage.input_tokens == len(engine.calls[0].prompt)
    assert message.usage.output_tokens == whole.usage.output_tokens == engine.calls[0].made
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    signatures = [block.signature for each in (message, whole) for block in each.content if block.type == "thinking"]
    assert len(set(signatures)) == 1
    assert signatures[0]
    kinds = [event.type for event in raw if event.type != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block * 4, "message_delta", "message_stop"]
    deltas = [event.delta.type for event in raw if event.type == "content_block_delta"]
    once = list(dict.fromkeys(deltas))
    assert once == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert deltas.count("text_delta") > 1
    assert [event.index for event in raw if event.type == "content_block_stop"] == [0, 1, 2, 3]
    assert raw[0].message.content == []
    assert raw[0].message.stop_reason is None


def test_arguments_are_streamed_where_they_are_certain() -> None:
    with client_of(scripted()) as client:
        message, raw = streamed(client, tools=[WEATHER], tool_choice={"type": "any"})
    assert plain(message) == ["Grüße?", "I look.", FIRST, SECOND]
    told: dict[int, list[str]] = {}
    for event in raw:
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            told.setdefault(event.index, []).append(event.delta.partial_json)
    assert all(len(deltas) > 5 for deltas in told.values())
    assert [json.loads("".join(deltas)) for deltas in told.values()] == [FIRST, SECOND]


def test_calls_and_their_results_go_round() -> None:
    engine = scripted()
    with client_of(engine) as client:
        first = client.messages.create(**ASK, tools=[WEATHER])
        calls = [block for block in first.content if block.type == "tool_use"]
        results: Any = [
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "rain"}]},
            {"type": "tool_result", "tool_use_id": calls[1].id, "content": "no such city", "is_error": True},
            {"type": "text", "text": "And now?"},
        ]
        turns: Any = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        client.messages.create(**{**ASK, "messages": turns}, tools=[{**WEATHER, "type": "custom", "strict": True}])
    assert prompt_of(engine).partition("<|user|>")[2] == (
        "Weather?<|end|><|assistant|>I look.(thought Grüße?)"
        "(weather|[('city', 'Köln \"Süd\"'), ('days', 2)])(weather|[('city', '你好')])<|end|>"
        "<|tool|>rain=weather<|end|><|tool|>Error: no such city=weather<|end|><|user|>And now?<|end|><|assistant|>"
    )
    assert '"strict": true' in prompt_of(engine)


def test_which_tools_may_be_called() -> None:
    engine = scripted()
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    with client_of(engine) as client:
        one = client.messages.create(
            **ASK, tools=[WEATHER, search], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
        )
        assert plain(one) == ["Grüße?", "I look.", FIRST]
        assert "web_search" not in prompt_of(engine)
        none = client.messages.create(**ASK, tools=[WEATHER], tool_choice={"type": "none"})
        assert [block.type for block in none.content] == ["thinking", "text"]
        assert "weather" not in prompt_of(engine)


def test_thinking_is_switched_and_may_be_hidden() -> None:
    engine = scripted("I think</think>so")
    with client_of(engine) as client:
        on: Any = {"type": "enabled", "budget_tokens": 1024}
        assert plain(client.messages.create(**ASK, thinking=on)) == ["I think", "so"]
        assert prompt_of(engine).endswith("<|assistant|><think>\n")
        hidden = client.messages.create(**ASK, thinking={"type": "adaptive", "display": "omitted"})
        (message, _) = streamed(client, thinking={"type": "adaptive", "display": "omitted"})
        for each in (hidden, message):
            assert plain(each) == ["", "so"]
            assert each.content[0].signature
        assert engine.calls[0].params.constraint is not None, "so much reasoning at most"
        client.messages.create(**ASK, thinking={"type": "disabled"}, output_config={"effort": "xhigh"})
        assert prompt_of(engine).endswith("high<|assistant|>")


def test_a_budget_that_cannot_be_put_on_a_model_is_a_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted("I think</think>so")
    monkeypatch.setattr(engine.tokenizer, "to_json", lambda: None)
    with client_of(engine) as client:
        answer = client.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 1024})
    assert plain(answer) == ["I think", "so"]
    assert engine.calls[-1].params.constraint is None


def test_an_answer_that_the_client_has_begun_goes_on() -> None:
    engine = scripted(" rain")
    begun: Any = [*HELLO, {"role": "assistant", "content": "It will"}]
    with client_of(engine) as client:
        assert plain(client.messages.create(**{**ASK, "messages": begun})) == [" rain"]
        assert prompt_of(engine).endswith("<|user|>Weather?<|end|><|assistant|>It will")
        client.messages.create(**{**ASK, "messages": begun}, thinking={"type": "adaptive"})
        assert prompt_of(engine).endswith("<|assistant|><think>\n</think>\n\nIt will")
    with client_of(FakeEngine("a the", tokenizer=sentencepiece_like())) as client:  # it drops a first space
        assert plain(client.messages.create(**{**ASK, "messages": begun})) == [" a the"]
        assert plain(client.messages.create(**ASK)) == ["a the"]


def test_tokens_are_counted_as_they_are_used() -> None:
    fields: Any = {"messages": HELLO, "system": [{"type": "text", "text": "Be brief."}], "tools": [WEATHER]}
    with client_of(scripted()) as client:
        counted = client.messages.count_tokens(model=MODEL, **fields).input_tokens
        assert counted == client.messages.create(model=MODEL, max_tokens=1, **fields).usage.input_tokens
        assert counted > client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens


def test_a_schema_is_followed() -> None:
    engine = scripted("{}")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with client_of(engine) as client:
        client.messages.create(**ASK, output_config={"format": {"type": "json_schema", "schema": schema}})
        client.messages.create(**ASK, extra_body={"output_format": {"type": "json_schema", "schema": schema}})
    for call in engine.calls:
        assert call.params.constraint is not None
        assert '"integer"' in call.params.constraint.text


def test_models_in_the_form_that_is_asked_for() -> None:
    engine = FakeEngine()
    with client_of(engine) as client:
        page = client.models.list(limit=100)
        (model,) = list(page)
        assert (model.id, model.type, model.created_at.year) == (MODEL, "model", 2023)
        assert (model.max_input_tokens, page.has_more, page.first_id) == (engine.max_context, False, MODEL)
        assert client.models.retrieve(MODEL).display_name == MODEL


@pytest.mark.parametrize("text", ["plain words", CALLS])
def test_no_part_is_lost_without_tools(text: str) -> None:
    with client_of(scripted(text)) as client:
        message, _ = streamed(client)
        assert plain(message) == plain(client.messages.create(**ASK))
