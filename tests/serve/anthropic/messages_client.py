"""Anthropic's client of a scripted engine, and a chat template that shows all that it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anthropic import Anthropic
from fake_engine import FakeEngine, byte_level
from running import running

MODEL = "acme/fake-1b"
HELLO: Any = [{"role": "user", "content": "Weather?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
BEGIN, END = "<tool_call>", "</tool_call>"
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}{# <tool_call> #}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.reasoning_content %}(thought {{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}|{{ c.function.arguments.items() | list }}){% endfor %}"
    "{% if m.name %}={{ m.name }}{% endif %}<|end|>{% endfor %}"
    "{{ reasoning_effort or '' }}<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
)
CALLS = (
    "<think>Grüße?</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln \\"Süd\\"", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "你好"}}\n</tool_call>'
)
FIRST, SECOND = {"city": 'Köln "Süd"', "days": 2}, {"city": "你好"}


def scripted(text: str = CALLS, **fields: Any) -> FakeEngine:
    return FakeEngine(
        text, **{"tokenizer": byte_level(TEMPLATE, (BEGIN, END, "<think>", "</think>")), "max_context": 4096, **fields}
    )


@contextmanager
def client_of(engine: FakeEngine, *, key: str | None = None, **options: Any) -> Iterator[Anthropic]:
    with (
        running(engine, api_key=key, **options) as url,
        Anthropic(base_url=url, api_key=key or "none", max_retries=0, timeout=10) as client,
    ):
        yield client


def prompt_of(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt, skip_special_tokens=False)
