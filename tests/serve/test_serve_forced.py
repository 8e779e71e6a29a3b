"""Forced and strict calls, grammars beside tools and reasoning, and its budget: over HTTP, with a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine, byte_level
from llguidance import LLMatcher
from test_serve_tools import HELLO, LOOSE, MODEL, TEMPLATE, WEATHER, Serving, streamed

from ferrule.engine.grammar import grammar_tokenizer, open_matcher

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
OTHER: Any = {"type": "function", "function": {"name": "other"}}
THOUGHT = "<think>hm</think>\n\n"
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["ok"]}}}


def saying(text: str = CALL) -> FakeEngine:
    return FakeEngine(text, tokenizer=byte_level(TEMPLATE, MARKS), max_context=2048)


def matcher_of(engine: FakeEngine) -> LLMatcher:
    """Matcher of the grammar that the last answer had to follow."""
    constraint = engine.calls[-1].params.constraint
    assert constraint is not None
    end = engine.tokenizer.eos_token_id
    assert end is not None
    return open_matcher(grammar_tokenizer(engine.tokenizer.to_json() or "", engine.vocab_size, [end]), constraint)


def follows(engine: FakeEngine, text: str) -> bool:
    """Whether the grammar of the last answer allows ``text`` as all of one."""
    tokens, matcher = engine.tokenizer.encode(text, add_special_tokens=False), matcher_of(engine)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "tools": [LOOSE, OTHER], **fields})


def test_a_forced_call_has_a_grammar(serving: Serving) -> None:
    engine = saying()
    client = serving(engine)
    other = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice, several, two in (("required", True, True), ("required", False, True), (named, True, False)):
        answer = ask(client, tool_choice=choice, parallel_tool_calls=several).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert json.loads(answer.message.tool_calls[0].function.arguments) == {"city": "Köln", "days": 2}
        assert follows(engine, CALL)
        assert follows(engine, THOUGHT + CALL)
        assert follows(engine, other) == two
        assert follows(engine, f"{CALL}\n{CALL}") == (several and two), "of a named tool one call, as OpenAI does it"
        assert not follows(engine, "No.")
        assert not follows(engine, CALL.replace("2", '"2"'))
        assert not follows(engine, CALL.replace("weather", "unknown"))


def test_strict_calls_have_a_grammar_once_they_begin(serving: Serving) -> None:
    engine = saying()
    client = serving(engine)
    ask(client)
    assert engine.calls[-1].params.constraint is None
    ask(client, tools=[WEATHER, OTHER])
    for text in ("No.", THOUGHT + "I look.\n" + CALL + "\nSo.", CALL.replace("weather", "other")):
        assert follows(engine, text)
    assert not follows(engine, CALL.replace("2", '"2"'))
    assert not follows(engine, "I look. " + CALL.replace("weather", "unknown"))
    broken = {**WEATHER, "function": {**WEATHER["function"], "parameters": {"properties": {"a": {"type": "strin"}}}}}
    loose = {"type": "function", "function": {**broken["function"], "name": "loose", "strict": False}}
    with pytest.raises(openai.BadRequestError, match="properties/a") as caught:
        ask(client, tools=[loose, broken])
    assert caught.value.param == "tools[1].function.parameters"
    ask(client, tools=[loose, WEATHER])


def test_strict_is_a_wish_where_the_tokenizer_follows_no_grammar(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = saying()
    monkeypatch.setattr(engine.tokenizer, "to_json", lambda: None)
    client = serving(engine)
    assert ask(client, tools=[WEATHER]).choices[0].finish_reason == "tool_calls"
    for fields in ({"tool_choice": "required"}, {"extra_body": {"reasoning_budget": 5}}):
        with pytest.raises(openai.BadRequestError, match="tokenizer"):
            ask(client, **fields)


def test_a_schema_comes_after_the_reasoning_or_instead_of_a_call(serving: Serving) -> None:
    engine = saying(THOUGHT + '{"ok": 1}')
    client = serving(engine)
    answer = ask(client, response_format=FORM, tools=None).choices[0].message
    assert (answer.content, answer.reasoning_content) == ('{"ok": 1}', "hm")
    assert follows(engine, '{"ok": 1}')
    assert follows(engine, engine.text)
    assert not follows(engine, "hm")
    ask(client, response_format=FORM, tools=None, reasoning_effort="none")
    assert follows(engine, '{"ok": 1}')
    assert not follows(engine, engine.text)
    ask(client, response_format=FORM)
    assert follows(engine, engine.text)
    assert follows(engine, THOUGHT + CALL)
    assert not follows(engine, "No.")
    ask(client, response_format=FORM, tool_choice="required")
    assert follows(engine, CALL)
    assert not follows(engine, '{"ok": 1}')
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}  # the template opens it
    ask(client, tools=None, extra_body={"structured_outputs": {"regex": "a/b+"}, **thinks})
    assert follows(engine, "hm</think>a/bb")
    assert not follows(engine, "a/bb")
    ask(client, tools=None, reasoning_effort="none", extra_body={"guided_choice": ["yes"], **thinks})
    assert follows(engine, "</think>yes")  # a template that does not care
    assert not follows(engine, "hm</think>yes")


@pytest.mark.parametrize("field", ["reasoning_budget", "thinking_budget", "thinking_token_budget"])
def test_reasoning_ends_with_its_budget(serving: Serving, field: str) -> None:
    engine = saying("a")
    client = serving(engine)
    opened = {"chat_template_kwargs": {"enable_thinking": True}}
    ask(client, tools=None, extra_body={field: 3, **opened})
    matcher, close = matcher_of(engine), engine.tokenizer.encode("</think>", add_special_tokens=False)
    assert matcher.try_consume_tokens(engine.tokenizer.encode("xyz", add_special_tokens=False)) == 3
    assert matcher.try_consume_tokens(engine.tokenizer.encode("!", add_special_tokens=False)) == 0
    assert matcher.try_consume_tokens(close) == 1
    assert follows(engine, "x</think>so <tool_call>")  # behind it all is free
    ask(client, tools=None, extra_body={field: 0})
    assert not follows(engine, "<think>x</think>")
    ask(client, tools=None, extra_body={field: -1})
    assert engine.calls[-1].params.constraint is None


@pytest.mark.parametrize("delta", ["required", "strict", "free"])
def test_arguments_are_streamed_where_they_are_certain(serving: Serving, delta: str) -> None:
    """By a grammar; else a call comes when it is complete."""
    client = serving(saying(f"{CALL}\n{CALL}"))
    fields: Any = {"tools": [WEATHER if delta == "strict" else LOOSE]}
    if delta == "required":
        fields["tool_choice"] = "required"
    (answer,) = streamed(client, **fields)
    assert [json.loads(arguments) for _, _, arguments in answer["calls"]] == [{"city": "Köln", "days": 2}] * 2
    assert answer["finish"] == "tool_calls"
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **fields)
    calls = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    assert (len(calls) > 10) == (delta != "free")
    if delta != "free":
        (cut,) = streamed(client, **fields, max_tokens=40)
        assert (cut["calls"][0][1], cut["finish"]) == ("weather", "length")
        assert '{"city": "K'.startswith(cut["calls"][0][2][:10])


def test_a_model_that_does_not_reason_ignores_its_budget(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine("yes")
    monkeypatch.setattr(engine.tokenizer, "to_json", lambda: None)
    assert ask(serving(engine), tools=None, extra_body={"reasoning_budget": 9}).choices[0].message.content == "yes"
    assert engine.calls[-1].params.constraint is None
