"""Answers read by the response template that a tokenizer declares: as transformers reads them, however they are cut."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ollama
import openai
import pytest
from fake_engine import FakeEngine, byte_level
from test_serve_tools import HELLO, MODEL, streamed
from transformers.utils.chat_parsing import parse_response

from ferrule.serve.tools.families import dialect
from ferrule.serve.tools.parts import Call, Reasoning, Text, Tools

TEMPLATE: dict[str, Any] = {
    "version": 1,
    "start_anchor": "<|assistant|>",
    "defaults": {"role": "assistant"},
    "fields": {
        "content": {},
        "thinking": {"open": "<reason>", "close": "</reason>", "optional": False},
        "tool_calls": {
            "open_pattern": r"<call:(?P<name>\w+)>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
TOOLS = Tools({"find": TOOL["function"]["parameters"]})
CALL = '<call:find>{text: <|"|>a"}</call<|"|>, n: "3"}</call>'
PROMPT = "<|user|>Hi<|assistant|>"


def read(text: str, cuts: list[int], *, prompt: str = PROMPT, ended: bool = True, tools: Tools | None = TOOLS) -> Any:
    reader = dialect("", response=TEMPLATE).reader(prompt, tools)
    parts = [part for begin, end in pairwise([0, *cuts, len(text)]) for part in reader.push(text[begin:end])]
    parts += reader.finish(ended=ended)
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, Call)]
    said, reasoned = ("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Text, Reasoning))
    return calls, said, reasoned


FOUND = ("find", {"text": 'a"}</call', "n": 3})
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("<reason>hm</reason>\n\nSure.\n" + CALL * 2, {}, ([FOUND] * 2, "Sure.", "hm")),
    ("hm</reason>so < it", {"prompt": f"{PROMPT}<reason>"}, ([], "so < it", "hm")),
    ("a <rea and <call:x", {}, ([], "a <rea and <call:x", "")),
    (f"A {CALL} B <call:find>{{n: }}</call> C {CALL}", {}, ([FOUND], f"A  B <call:find>{{n: }}</call> C {CALL}", "")),
    (f"A {CALL}", {"tools": None}, ([], f"A {CALL}", "")),
    ("A <call:find>{n: 1", {"ended": False}, ([], "A ", "")),
    ("A <call:find>{n: 1}", {}, ([("find", {"n": 1})], "A ", "")),
]


@pytest.mark.parametrize(("text", "fields", "expected"), CASES)
def test_parts_are_those_of_the_template_however_they_are_cut(text: str, fields: Any, expected: Any) -> None:
    assert read(text, [], **fields) == expected
    assert read(text, list(range(1, len(text))), **fields) == expected
    for cut in range(1, len(text), 3):
        assert read(text, [cut], **fields) == expected


def test_whole_answers_are_what_transformers_makes_of_them() -> None:
    text = CASES[0][0]
    message = parse_response(text, TEMPLATE, prefix=PROMPT, tools=[TOOL])
    calls, said, reasoned = read(text, [5, 40])
    assert (said, reasoned) == (message["content"], message["thinking"])
    assert calls == [(each["function"]["name"], each["function"]["arguments"]) for each in message["tool_calls"]]


def test_a_declared_format_is_served(serving: Callable[..., openai.OpenAI]) -> None:
    marks = ("<reason>", "</reason>", '<|"|>')
    engine = FakeEngine(CASES[0][0], tokenizer=byte_level("{{ tools }}<|assistant|>", marks), max_context=2048)
    engine.tokenizer.response_template = TEMPLATE
    client = serving(engine)
    message: Any = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL]).choices[0].message
    assert (message.content, message.reasoning_content) == ("Sure.", "hm")
    (answer,) = streamed(client, tools=[TOOL])
    assert (answer["text"], answer["reasoning"], answer["finish"]) == ("Sure.", "hm", "tool_calls")
    for call, (_, _, arguments) in zip(message.tool_calls, answer["calls"], strict=True):
        assert json.loads(call.function.arguments) == json.loads(arguments) == FOUND[1]
    card: Any = client.models.retrieve(MODEL)
    assert {"tools", "reasoning"} <= set(card.capabilities)
    with ollama.Client(str(client.base_url).removesuffix("/v1/"), timeout=10) as other:
        assert {"tools", "thinking"} <= set(other.show(MODEL).capabilities or ())
        told = other.chat(MODEL, HELLO, tools=[TOOL], think=True).message
    assert (told.content, told.thinking) == ("Sure.", "hm")
    assert [call.function.arguments for call in told.tool_calls or ()] == [FOUND[1]] * 2
    for fields in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(openai.BadRequestError, match="calls"):
            client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL], **fields)


def test_one_that_cannot_be_used_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = dialect("<tool_call>", response={"version": 9})
    assert (made.family, made.declared) == ("hermes", None)
    assert "version" in caplog.text
    assert dialect("<tool_call>", "hermes", TEMPLATE).declared is None
