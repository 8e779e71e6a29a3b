"""Tools and reasoning over HTTP, with the real client and a scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine, byte_level

from ferrule.cli.serving.chat import Talk
from ferrule.cli.serving.client import ChatServer

MODEL = "acme/fake-1b"
HELLO: Any = [{"role": "user", "content": "Weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        "strict": True,
    },
}
LOOSE: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": False}}
BEGIN, END = "<tool_call>", "</tool_call>"
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}[{{ tool | tojson }}]{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ m.reasoning_content or '' }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}|{{ c.function.arguments.items() | list }}){% endfor %}"
    "{% if m.name %}={{ m.name }}{% endif %}<|end|>{% endfor %}"
    "{{ reasoning_effort or '' }}<|assistant|>{% if enable_thinking %}<think>{% endif %}{# </think> #}"
)
TEXT = (
    "<think>Grüße?</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln \\"Süd\\"", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "你好"}}\n</tool_call>'
)
FIRST, SECOND = {"city": 'Köln "Süd"', "days": 2}, {"city": "你好"}
Serving = Callable[..., openai.OpenAI]


def calling(text: str = TEXT) -> FakeEngine:
    """An engine of a model whose markers of calls are special tokens, as those of some models."""
    return FakeEngine(text, tokenizer=byte_level(TEMPLATE, (BEGIN, END)), max_context=2048)


def prompt_of(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt, skip_special_tokens=False)


def streamed(client: openai.OpenAI, **fields: Any) -> list[dict[str, Any]]:
    """The answers of a stream, put together as a client does."""
    made: dict[int, dict[str, Any]] = {}
    stream = client.chat.completions.create(
        **{"model": MODEL, "messages": HELLO, "tools": [WEATHER], **fields}, stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            answer = made.setdefault(choice.index, {"text": "", "reasoning": "", "calls": [], "tokens": []})
            delta = choice.delta
            answer["text"] += delta.content or ""
            answer["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                assert call.function
                if call.function.name:
                    assert (call.index, call.type) == (len(answer["calls"]), "function")
                    answer["calls"].append([call.id, call.function.name, ""])
                answer["calls"][call.index][2] += call.function.arguments or ""
            if choice.logprobs and choice.logprobs.content:
                answer["tokens"] += [entry.token for entry in choice.logprobs.content]
            answer["finish"] = choice.finish_reason
    return [made[index] for index in sorted(made)]


def test_a_whole_answer_with_calls(serving: Serving) -> None:
    engine = calling()
    client = serving(engine)
    choice = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert getattr(choice.message, "reasoning_content", None) == "Grüße?"
    calls: Any = choice.message.tool_calls
    assert [(call.type, call.function.name) for call in calls] == [("function", "weather")] * 2
    assert [json.loads(call.function.arguments) for call in calls] == [FIRST, SECOND]
    assert len({call.id for call in calls}) == 2
    assert '"strict": true' in prompt_of(engine)

    alone: Any = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], parallel_tool_calls=False
    ).choices[0]
    assert [json.loads(call.function.arguments) for call in alone.message.tool_calls] == [FIRST]
    assert alone.finish_reason == "tool_calls"
    assert engine.calls[-1].made < engine.calls[0].made  # what would follow is not generated


def test_without_tools_calls_are_text(serving: Serving) -> None:
    engine = calling()
    client = serving(engine)
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = client.chat.completions.create(model=MODEL, messages=HELLO, **fields).choices[0]
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content
        assert '"name": "weather"' in choice.message.content
        assert '"strict"' not in prompt_of(engine)


@pytest.mark.parametrize("n", [1, 3])
def test_a_streamed_answer_with_calls(serving: Serving, n: int) -> None:
    answers = streamed(serving(calling()), n=n, logprobs=True)
    assert len(answers) == n
    for answer in answers:
        assert (answer["text"], answer["reasoning"], answer["finish"]) == ("I look.", "Grüße?", "tool_calls")
        assert [name for _, name, _ in answer["calls"]] == ["weather"] * 2
        assert [json.loads(arguments) for _, _, arguments in answer["calls"]] == [FIRST, SECOND]
        # The bytes of every token come with some delta, the markers among them, and none twice.
        assert [token for token in answer["tokens"] if token in (BEGIN, END)] == [BEGIN, END] * 2
        assert len(answer["tokens"]) == len(byte_level(TEMPLATE, (BEGIN, END)).encode(TEXT))
    assert len({call[0] for answer in answers for call in answer["calls"]}) == 2 * n


def test_a_call_that_is_cut_off_is_none(serving: Serving) -> None:
    engine = calling()
    for stop, limit, finish in ((None, 60, "length"), ("Köln", None, "stop")):
        fields: Any = {"stop": stop, "max_tokens": limit} if stop else {"max_tokens": limit}
        fields["tools"] = [LOOSE]
        (answer,) = streamed(serving(engine), **fields)
        assert (answer["calls"], answer["finish"]) == ([], finish)
        assert answer["text"].startswith("I look.")
        assert ("<tool_call>" in answer["text"]) == (finish == "stop")  # what it said up to the stop string


def test_the_history_has_calls_and_results(serving: Serving) -> None:
    engine = calling("done")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": "sun"},
    ]
    client = serving(engine)
    client.chat.completions.create(
        model=MODEL, messages=messages, reasoning_effort="low", extra_body={"chat_template_kwargs": {"extra": 1}}
    )
    assert prompt_of(engine) == (
        "<|user|>Weather?<|end|><|assistant|>hm(weather|[('city', 'Köln')])<|end|><|tool|>rain=weather<|end|>"
        "<|assistant|>(old|[])<|end|><|tool|>sun=old<|end|>low<|assistant|>"
    )


def test_half_a_character_for_the_template_is_refused(serving: Serving) -> None:
    client = serving(calling())
    body = json.dumps({"messages": HELLO, "reasoning_effort": "\ud800"}).encode()
    answer = httpx.post(
        f"{client.base_url}chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert "surrogate" in answer.json()["error"]["message"]


def test_reasoning_that_the_prompt_has_opened(serving: Serving) -> None:
    client = serving(calling("I think</think>so"))
    message = client.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body={"chat_template_kwargs": {"enable_thinking": True}}
    ).choices[0]
    assert (message.message.content, getattr(message.message, "reasoning_content", None)) == ("so", "I think")


def test_a_parser_by_name(serving: Serving) -> None:
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    engine = FakeEngine('<tool_call>{"name": "weather", "arguments": {}}</tool_call>', tokenizer=byte_level(template))
    with pytest.raises(openai.BadRequestError, match="--tool-parser NAME"):
        streamed(serving(engine))
    (answer,) = streamed(serving(engine, tool_parser="hermes"))
    assert [call[1:] for call in answer["calls"]] == [["weather", "{}"]]
    with pytest.raises(openai.BadRequestError, match="--tool-parser NAME"):
        streamed(serving(engine, tool_parser="none"))


@pytest.mark.parametrize("terminal", [False, True])
def test_ferrule_chat_shows_reasoning_on_terminals_and_forgets_it(
    serving: Serving, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    engine = calling("<think>hm</think>\nso")
    server = ChatServer(str(serving(engine).base_url))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    talk = Talk(server, MODEL, [], {})
    talk.say("one")
    assert capsys.readouterr().out.replace("\x1b[2m", "").replace("\x1b[0m", "") == (
        "hm\n\nso\n" if terminal else "so\n"
    )
    talk.say("two")
    assert prompt_of(engine) == "<|user|>one<|end|><|assistant|>so<|end|><|user|>two<|end|><|assistant|>"
    server.close()
