"""The Responses API with OpenAI's client, whose own types every event and object must fit, over a scripted engine."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import httpx
import openai
import pytest
from fake_engine import FakeEngine, byte_level
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter
from test_serve_forced import follows
from test_serve_tools import BEGIN, FIRST, MODEL, SECOND, TEMPLATE, Serving, calling, prompt_of
from test_serve_tools import END as END_OF_CALL

from ferrule.serve.answer import service

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "strict": True,
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta"]
MESSAGE_END = ["output_text.done", "content_part.done", "output_item.done"]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def url_of(client: openai.OpenAI, path: str = "responses") -> str:
    return f"{client.base_url}{path}"


def streamed(client: openai.OpenAI, **fields: Any) -> list[Any]:
    """Events of a stream, each one valid, named as its type says and numbered in order."""
    body = {"model": MODEL, "stream": True, **fields}
    with httpx.stream("POST", url_of(client), json=body, timeout=10) as answer:
        lines = [line for line in answer.iter_lines() if line]
    events = [EVENT.validate_json(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def kinds(events: list[Any]) -> list[str]:
    """Types of events without repeats of one delta."""
    types = [event.type.removeprefix("response.") for event in events]
    return [each for at, each in enumerate(types) if not (each.endswith(".delta") and at and types[at - 1] == each)]


def whole(client: openai.OpenAI, **fields: Any) -> Response:
    answer = httpx.post(url_of(client), json={"model": MODEL, **fields}, timeout=10)
    assert answer.status_code == 200, answer.text
    return Response.model_validate_json(answer.text)


def shape(response: Response) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for item in response.output:
        match item.type:
            case "message":
                made.append(
                    (item.type, item.status, *(part.text for part in item.content if part.type == "output_text"))
                )
            case "reasoning":
                made.append((item.type, item.status, *(part.text for part in item.content or item.summary)))
            case "function_call":
                made.append((item.type, item.status, item.name, json.loads(item.arguments)))
    return made


TURN = [
    ("reasoning", "completed", "Grüße?"),
    ("message", "completed", "I look."),
    ("function_call", "completed", "weather", FIRST),
    ("function_call", "completed", "weather", SECOND),
]


def test_a_turn_has_the_same_items_whole_and_streamed_in_openais_order(serving: Serving) -> None:
    client = serving(calling())
    response = whole(client, input="Weather?", tools=[WEATHER], metadata={"a": "b"}, user="me")
    assert (response.status, response.object, shape(response)) == ("completed", "response", TURN)
    assert (response.metadata, response.user, response.tool_choice) == ({"a": "b"}, "me", "auto")
    assert response.id.startswith("resp_")

    events = streamed(client, input="Weather?", tools=[WEATHER])
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done", *MESSAGE, *MESSAGE_END, *CALL, *CALL),
        "completed",
    ]
    last = events[-1].response
    assert shape(last) == TURN
    assert last.usage == response.usage
    assert events[0].response.output == []
    assert [event.item.id for event in events if event.type == "response.output_item.done"] == [
        item.id for item in last.output
    ]
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == last.output_text == "I look."


def test_reasoning_is_told_as_a_summary_where_one_is_asked_for_and_its_tokens_are_counted(serving: Serving) -> None:
    engine = FakeEngine("<think>Hm, hm.</think>Yes.", tokenizer=byte_level(TEMPLATE, ("<think>", "</think>")))
    client = serving(engine)
    events = streamed(client, input="?", reasoning={"summary": "auto", "effort": "low"})
    part = "reasoning_summary_part"
    assert kinds(events)[2:8] == [
        *("output_item.added", f"{part}.added", "reasoning_summary_text.delta", "reasoning_summary_text.done"),
        *(f"{part}.done", "output_item.done"),
    ]
    item, usage = events[-1].response.output[0], events[-1].response.usage
    assert (item.summary[0].text, item.content) == ("Hm, hm.", None)
    thought = len(engine.tokenizer.encode("<think>Hm, hm.</think>"))
    assert usage.output_tokens_details.reasoning_tokens == thought
    assert usage.output_tokens == engine.calls[-1].made == usage.total_tokens - usage.input_tokens
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "?"}])
    assert chat.usage
    assert chat.usage.completion_tokens_details
    assert chat.usage.completion_tokens_details.reasoning_tokens == thought


def test_the_clients_own_stream_and_parse_work(serving: Serving) -> None:
    class Place(BaseModel):
        city: str

    client = serving(FakeEngine('{"city": "Köln"}'))
    with client.responses.stream(model=MODEL, input="Where?", text_format=Place) as stream:
        seen = [event.type for event in stream]
        assert stream.get_final_response().output_parsed == Place(city="Köln")
    assert seen[0] == "response.created"
    parsed = client.responses.parse(model=MODEL, input="Where?", text_format=Place)
    assert parsed.output_parsed == Place(city="Köln")

    client = serving(calling())
    with client.responses.stream(model=MODEL, input="Weather?", tools=[WEATHER]) as stream:
        assert shape(stream.get_final_response()) == TURN


def test_arguments_are_streamed_where_they_are_certain(serving: Serving) -> None:
    """By a grammar. Of an answer that is cut within them the call is incomplete, and not part of what follows."""
    engine = calling()
    client = serving(engine)
    fields: Any = {"model": MODEL, "input": "Weather?", "tools": [WEATHER], "tool_choice": "required"}
    with client.responses.stream(**fields) as stream:
        events: list[Any] = list(stream)
        last = stream.get_final_response()
    assert shape(last) == TURN
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert len(deltas) > 20
    for item, given in zip(done, (FIRST, SECOND), strict=True):
        told = "".join(event.delta for event in deltas if event.item_id == item.item_id)
        assert told == item.arguments
        assert json.loads(told) == given
    cut = streamed(client, **{**fields, "max_output_tokens": 90})[-1].response
    assert (cut.status, cut.output[-1].type, cut.output[-1].status) == ("incomplete", "function_call", "incomplete")
    assert json.dumps(FIRST, ensure_ascii=False).startswith(cut.output[-1].arguments)
    client.responses.create(model=MODEL, previous_response_id=cut.id, input="And?")
    assert prompt_of(engine).endswith("<|assistant|>I look.Grüße?<|end|><|user|>And?<|end|><|assistant|>")


def test_an_answer_that_is_cut_is_incomplete_and_its_log_probabilities_come(serving: Serving) -> None:
    client = serving(FakeEngine())
    fields = {"input": "?", "max_output_tokens": 3, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    response = whole(client, **fields)
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    entries = response.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert [len(entry.top_logprobs) for entry in entries] == [2, 2, 2]
    events = streamed(client, **fields)
    assert kinds(events) == ["created", "in_progress", *MESSAGE, *MESSAGE_END, "incomplete"]
    assert [entry.token for event in events if "delta" in event.type for entry in event.logprobs] == [
        entry.token for entry in entries
    ]


def test_a_failure_in_mid_answer_is_an_error_and_a_failed_response(serving: Serving) -> None:
    events = streamed(serving(FakeEngine(fail_after=3)), input="?")
    assert kinds(events)[-2:] == ["error", "failed"]
    assert "rank 1" in events[-2].message
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    with pytest.raises(openai.InternalServerError, match="rank 1"):
        serving(FakeEngine(fail_after=3)).responses.create(model=MODEL, input="?")


def test_items_become_the_turns_of_a_chat(serving: Serving) -> None:
    engine = FakeEngine("ok", tokenizer=byte_level(TEMPLATE, (BEGIN, END_OF_CALL)), max_context=2048)
    client = serving(engine)
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Here"}]},
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Köln"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Rain"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"},
    ]
    assert client.responses.create(model=MODEL, instructions="You help.", input=items).output_text == "ok"
    assert prompt_of(engine) == (
        "<|system|>You help.\n\nBe brief.<|end|><|user|>Here\n\nWeather?<|end|>"
        "<|assistant|>I look.Hm.(weather|[('city', 'Köln')])(apply_patch|[('input', '*** Begin')])<|end|>"
        "<|tool|>Rain=weather<|end|><|tool|>Done=apply_patch<|end|><|assistant|>"
    )


def test_a_custom_tool_takes_free_text_and_namespaces_are_told_apart(serving: Serving) -> None:
    text = (
        '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin\\n"}}</tool_call>'
        '<tool_call>{"name": "mcp__notes__find", "arguments": {"q": 1}}</tool_call>'
    )
    engine = calling(text)
    client = serving(engine)
    notes = {
        "type": "namespace",
        "name": "mcp__notes",
        "description": "Notes",
        "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
    }
    events = streamed(client, input="?", tools=[PATCH, notes])
    custom, function = events[-1].response.output
    assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "apply_patch", "*** Begin\n")
    assert (function.namespace, function.name, function.arguments) == ("mcp__notes", "find", '{"q": 1}')
    assert kinds(events)[2:6] == [
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done")
    ]
    assert "start: /.+/" in prompt_of(engine)
    only: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}
    whole(client, input="?", tools=[PATCH, notes], tool_choice=only)
    assert "mcp__notes__find" not in prompt_of(engine)


def test_a_custom_tools_text_follows_its_grammar_and_is_streamed(serving: Serving) -> None:
    text = '*** "Köln"\n\ttwo \\ 🙂\n'
    said = f'<tool_call>\n{{"name": "apply_patch", "arguments": {{"input": {json.dumps(text)}}}}}\n</tool_call>'
    engine = FakeEngine(said, tokenizer=byte_level(TEMPLATE, (BEGIN, END_OF_CALL)), max_context=2048)
    client = serving(engine)
    grammars = [
        ("lark", 'start: "*** " LINE /\\t.*/ LF\nLINE: /"\\w+"/ LF\n%import common.LF'),
        ("regex", r'\*{3} "[^"]+"\n\t.*\n'),
    ]
    for syntax, definition in grammars:
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        fields: Any = {"input": "?", "tools": [{**PATCH, "format": form}, WEATHER]}
        events = streamed(client, **fields, tool_choice={"type": "custom", "name": "apply_patch"})
        (item,) = events[-1].response.output
        assert (item.type, item.input, item.status) == ("custom_tool_call", text, "completed")
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == text
        assert len(deltas) > 10
        plain = said.replace(r"\u00f6", "ö").replace(r"\ud83d\ude42", "🙂")
        assert follows(engine, plain)
        assert not follows(engine, plain.replace("***", "**"))
        whole(client, **fields)  # the model decides whether it calls, but not what the text is
        assert follows(engine, "No.")
        assert follows(engine, f"So. {plain}")
        assert not follows(engine, plain.replace("***", "**"))
    for syntax, definition, why in (
        ("lark", "start: a\na: /[/", r"2\(4\)"),
        ("regex", "a(", "regex"),
        ("lark", "start: /a\nb/ ~A\nA: /a/", r"line 2 of a grammar: '~'"),
    ):
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        with pytest.raises(openai.BadRequestError, match=why):
            client.responses.create(model=MODEL, input="?", tools=[{**PATCH, "format": form}])


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"background": True}, "background", "use stream"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
        ({"input": []}, "input", "required"),
        ({"input": [{"type": "web_search_call"}]}, "input.0", "web_search_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0", "text only"),
        ({"input": [{"type": "item_reference", "id": "msg_9"}]}, "input.0", "no item 'msg_9'"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "input.0",
            "valid JSON",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search runs at OpenAI"),
        ({"tools": [{"type": "file_search"}, WEATHER]}, "tools", "file_search"),
        ({"tools": [{"type": "local_shell"}]}, "tools", "local_shell"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "two of the name 'weather'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
        ({"tool_choice": "required"}, "tool_choice", "no tool may be called"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "'f' is not among"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strin"}}}},
            "text.format.schema",
            "strin",
        ),
        (
            {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "gbnf"}}]},
            "tools[apply_patch].format.syntax",
            "or regex",
        ),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [1]}]}, "tools", "namespace 'n' must have tools"),
        ({"input": [{"role": "user", "content": "?", "id": 5}]}, "input.0", "id must be a string"),
        ({"top_p": 2}, "top_p", "less than or equal to 1"),
        ({"seed": "one"}, "seed", "valid integer"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    fields: dict[str, Any], param: str, why: str, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match=why) as refused:
        client.responses.create(model=MODEL, extra_body={"input": "?", **fields})
    assert refused.value.param == param


def test_what_cannot_be_told_again_is_refused(shared_url: str) -> None:
    body = json.dumps({"input": "?", "text": {"format": {"type": "text", "x": "\ud800"}}})
    refused = httpx.post(f"{shared_url}/v1/responses", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == 400
    assert "cannot be written as JSON" in refused.json()["error"]["message"]


def test_a_search_beside_ones_own_tools_is_left_out_and_not_told(serving: Serving) -> None:
    client = serving(calling())
    search = {"type": "web_search", "external_web_access": False}
    response = whole(client, input="?", tools=[WEATHER, search])
    assert [tool.type for tool in response.tools] == ["function"]


def test_truncation_drops_the_oldest_turns_but_no_rules(serving: Serving) -> None:
    engine = FakeEngine("ok", max_context=256)
    client = serving(engine)
    talk: Any = [{"role": "system", "content": "RULE"}]
    for turn in range(40):
        talk += [{"role": "user", "content": f"question {turn}"}, {"role": "assistant", "content": "answer"}]
    talk.append({"role": "user", "content": "LAST"})
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=talk)
    assert refused.value.code == "context_length_exceeded"
    response = client.responses.create(model=MODEL, input=talk, truncation="auto", max_output_tokens=20)
    assert response.output_text == "ok"
    prompt = prompt_of(engine)
    kept = next(turn for turn in range(40) if f"question {turn}<" in prompt)
    assert prompt.startswith(f"<|system|>RULE<|end|><|user|>question {kept}<|end|>")
    assert prompt.endswith("<|user|>LAST<|end|><|assistant|>")
    length = len(engine.calls[-1].prompt)
    turn_before = len(engine.tokenizer.encode(f"<|user|>question {kept - 1}<|end|><|assistant|>answer<|end|>"))
    assert length <= 236 < length + turn_before
    huge: Any = [{"role": "user", "content": "x" * 3000}]
    with pytest.raises(openai.BadRequestError, match="context"):
        client.responses.create(model=MODEL, input=huge, truncation="auto")


def test_responses_are_kept_for_their_owner_and_followed(serving: Serving) -> None:
    engine = calling()
    client = serving(engine)
    first = client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER], instructions="Help.")
    call = first.output[2]
    assert call.type == "function_call"
    engine.text = "Rain."
    second = client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )
    assert (second.output_text, second.previous_response_id) == ("Rain.", first.id)
    assert prompt_of(engine) == (
        "<|user|>Weather?<|end|><|assistant|>I look.Grüße?"
        """(weather|[('city', 'Köln "Süd"'), ('days', 2)])(weather|[('city', '你好')])<|end|>"""
        "<|tool|>rain=weather<|end|><|assistant|>"
    )
    got = client.responses.retrieve(second.id)
    assert got.model_dump() == second.model_dump()
    page = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.type for item in page.data] == ["message", "reasoning"]
    assert [item.type for item in client.responses.input_items.list(second.id)] == [
        *("function_call_output", "function_call", "function_call", "message", "reasoning", "message")
    ]
    listed = url_of(client, f"responses/{second.id}/input_items")
    refused_by = [httpx.get(listed, params=each).json()["error"]["param"] for each in ({"limit": 0}, {"after": "x"})]
    assert refused_by == ["limit", "after"]
    raw = httpx.get(listed)
    ResponseItemList.model_validate_json(raw.text)
    reference: Any = [{"type": "item_reference", "id": second.output[0].id}, {"role": "user", "content": "More"}]
    client.responses.create(model=MODEL, input=reference)
    assert prompt_of(engine) == "<|assistant|>Rain.<|end|><|user|>More<|end|><|assistant|>"
    client.responses.delete(first.id)
    for gone in (first.id, "resp_unknown"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(model=MODEL, previous_response_id=first.id, input="?")
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    third = client.responses.create(model=MODEL, previous_response_id=second.id, input="And?", store=False)
    assert third.output_text == "Rain."
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(third.id)
    counted = client.responses.input_tokens.count(model=MODEL, previous_response_id=second.id, input="And?")
    assert counted.input_tokens == third.usage.input_tokens  # type: ignore[union-attr]


def test_a_chat_template_that_knows_no_tools_is_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="knows no tools"):
        client.responses.create(model=MODEL, input="?", tools=[WEATHER])


def test_signs_of_life_are_events_before_an_answer_and_before_a_failure(serving: Serving) -> None:
    with patch.object(service, "PING_SECONDS", 0.05):
        for engine, end in (
            (FakeEngine("ok", delay=0.2), [*MESSAGE, *MESSAGE_END, "incomplete"]),
            (FakeEngine(delay=0.2, fail_after=0), ["error", "failed"]),
        ):
            told = kinds(streamed(serving(engine), input="?", max_output_tokens=1))
            begun = len(told) - len(end)
            assert told[:begun] == ["created", *["in_progress"] * (begun - 1)]
            assert begun >= 4
            assert told[begun:] == end
