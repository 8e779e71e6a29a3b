"""Forced calls of tools by a split model, over each API that can force them, also when a rank is killed on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from server_process import Server, start_server

from ferrule.model.embedded import demo_path

pytestmark = pytest.mark.slow

TOOLS_TOLD = """{%- if tools -%}
{{- '<|system|>Call a tool by <tool_call>{"name": ..., "arguments": ...}</tool_call>: ' -}}
{{- tools | tojson ~ '<|end|>' -}}{%- endif -%}
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "units": {"enum": ["metric", "imperial"]},
    },
    "required": ["city", "days", "units"],
    "additionalProperties": False,
}
QUESTION: Any = [{"role": "user", "content": "How is the weather?"}]
FUNCTION = {"name": "weather", "description": "Weather of a city.", "parameters": SCHEMA}
OTHER = {"name": "clock", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded model with a template that tells of tools, on two ranks."""
    model = tmp_path_factory.mktemp("models") / "tooled"
    shutil.copytree(demo_path(), model)
    template = model / "chat_template.jinja"
    template.write_text(TOOLS_TOLD + template.read_text())
    server = start_server(str(model), "--tp", "2", "--dtype", "float32")
    yield server
    server.stop()


def called(server: Server, *, kill: bool = False) -> tuple[str, str]:
    """Name and arguments of the call of a streamed answer, put together from its deltas."""
    stream = server.client(timeout=90).chat.completions.create(
        model="tooled",
        messages=QUESTION,
        tools=[{"type": "function", "function": each} for each in (FUNCTION, OTHER)],  # type: ignore[misc]
        tool_choice={"type": "function", "function": {"name": "weather"}},
        temperature=0,
        stream=True,
    )
    name, arguments, finish = "", "", None
    for chunk in stream:
        choice = chunk.choices[0]
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            if kill:
                server.ranks()[1].kill()
                kill = False
        finish = choice.finish_reason or finish
    assert finish == "tool_calls"
    return name, arguments


def test_every_api_gets_the_same_valid_call(server: Server) -> None:
    name, arguments = called(server)
    assert name == "weather"
    jsonschema.validate(json.loads(arguments), SCHEMA)
    offered: Any = [
        {"name": each["name"], "input_schema": each["parameters"], "description": each.get("description", "")}
        for each in (FUNCTION, OTHER)
    ]
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="tooled",
            max_tokens=400,
            messages=QUESTION,
            tools=offered,
            tool_choice={"type": "tool", "name": "weather"},
            extra_body={"temperature": 0},
        )
    assert message.stop_reason == "tool_use"
    (block,) = (block for block in message.content if block.type == "tool_use")
    assert block.name == "weather"
    jsonschema.validate(block.input, SCHEMA)
    tools: Any = [{"type": "function", "strict": True, **each} for each in (FUNCTION, OTHER)]
    response = server.client().responses.create(
        model="tooled", input=QUESTION, tools=tools, tool_choice={"type": "function", "name": "weather"}, temperature=0
    )
    (item,) = (item for item in response.output if item.type == "function_call")
    jsonschema.validate(json.loads(item.arguments), SCHEMA)
    forced = server.client().chat.completions.create(
        model="tooled", messages=QUESTION, tools=[{"type": "function", "function": FUNCTION}], tool_choice="required"
    )
    assert forced.choices[0].message.tool_calls


def test_a_call_goes_on_when_a_rank_is_killed_in_its_midst(server: Server) -> None:
    whole = called(server)
    assert called(server, kill=True) == whole
    assert server.health().json()["recoveries"] == 1
