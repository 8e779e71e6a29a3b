"""What clients can ask for, of a model split in each way: the same as of one rank, also when a rank is killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from server_process import Server, start_server, wait_until
from tiny_adapters import make_adapter

from ferrule.model.embedded import demo_path

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
TOOLS: Any = [{"type": "function", "function": each} for each in (FUNCTION, OTHER)]
LONG: Any = {"temperature": 0, "max_tokens": 120, "extra_body": {"ignore_eos": True}}
"""Long enough that all are under way when a rank is killed."""
KILLED_AT = 20
"""Events of one of the streams."""


def call_of(server: Server, seen: Callable[[], object]) -> tuple[Any, ...]:
    """Name and arguments of a call, put together from the deltas of a stream."""
    name, arguments, finish = "", "", None
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for chunk in server.client(timeout=90).chat.completions.create(
        model="tooled", messages=QUESTION, tools=TOOLS, tool_choice=named, temperature=0, stream=True
    ):
        choice = chunk.choices[0]
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            seen()
        finish = choice.finish_reason or finish
    assert finish == "tool_calls"
    return name, arguments


def said(server: Server, seen: Callable[[], object], model: str = "tooled", **asked: Any) -> tuple[Any, ...]:
    """A streamed completion, event by event."""
    stream = server.client(timeout=90).completions.create(
        model=model, prompt="def main(", stream=True, **{**LONG, **asked}
    )
    told = []
    for chunk in stream:
        choice = chunk.choices[0]
        probabilities = choice.logprobs.tokens if choice.logprobs else None
        told.append((choice.text, choice.finish_reason, probabilities))
        seen()
    return "".join(text for text, _, _ in told), told[-1][1], [each for _, _, each in told if each]


def left(server: Server, seen: Callable[[], object]) -> tuple[Any, ...]:
    """A client that leaves in the midst of its answer."""
    with server.client(timeout=90).completions.create(
        model="tooled", prompt="def main(", stream=True, **{**LONG, "max_tokens": 400}
    ) as stream:
        text = ""
        for _, chunk in zip(range(30), stream, strict=False):
            text += chunk.choices[0].text
            seen()
    return (text,)


FEATURES: dict[str, Callable[[Server, Callable[[], object]], tuple[Any, ...]]] = {
    "plain": said,
    "tools": call_of,
    "schema": partial(
        said,
        extra_body={"structured_outputs": {"json": {"type": "array", "items": SCHEMA, "minItems": 2, "maxItems": 2}}},
        max_tokens=400,
    ),
    "logit bias": partial(said, logit_bias={"9": 8.0, "40": -100}),
    "log-probabilities": partial(said, logprobs=3),
    "stop": partial(said, stop=["zzzz", "self"]),
    "cancel": left,
    "adapter": partial(said, model="tooled:style"),
    "seed": partial(said, temperature=1.0, seed=11, presence_penalty=0.5),
}


def all_at_once(server: Server, kill: int | None = None) -> dict[str, tuple[Any, ...]]:
    """What comes of every feature beside the others. ``kill``: the rank that is killed on the way."""
    struck = Event()

    def seen(name: str, count: list[int]) -> None:
        count.append(0)
        if name == "plain" and kill is not None and len(count) == KILLED_AT and not struck.is_set():
            struck.set()
            server.ranks()[kill].kill()

    with ThreadPoolExecutor(len(FEATURES)) as pool:
        asked = {name: pool.submit(ask, server, partial(seen, name, [])) for name, ask in FEATURES.items()}
        found = {name: answer.result(120) for name, answer in asked.items()}
    assert kill is None or struck.is_set()
    return found


@contextmanager
def serving(model: Path, adapter: Path, *split: str) -> Iterator[Server]:
    server = start_server(str(model), "--dtype", "float32", "--adapter", f"style={adapter}", *split)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The embedded model with a template that tells of tools, and an adapter of it."""
    model = tmp_path_factory.mktemp("models") / "tooled"
    shutil.copytree(demo_path(), model)
    template = model / "chat_template.jinja"
    template.write_text(TOOLS_TOLD + template.read_text())
    return model, make_adapter(model, model.parent / "style")


@pytest.fixture(scope="module")
def whole(files: tuple[Path, Path]) -> dict[str, tuple[Any, ...]]:
    """On one rank, undisturbed."""
    with serving(*files, "--no-self-test") as server:
        found = all_at_once(server)
        text, finish, _ = said(server, lambda: None)
    assert (found["plain"][0], found["plain"][1]) == (text, finish), "the same as alone"
    assert found["tools"][0] == "weather"
    jsonschema.validate(json.loads(found["tools"][1]), SCHEMA)
    for each in json.loads(found["schema"][0]):
        jsonschema.validate(each, SCHEMA)
    assert found["stop"][1] == "stop"
    assert text.startswith(found["cancel"][0])
    assert len(found["log-probabilities"][2]) == LONG["max_tokens"]
    assert len({found[name][0] for name in ("plain", "logit bias", "adapter", "seed")}) == 4
    return found


@pytest.mark.parametrize(
    "split",
    [
        pytest.param(("--tp", "2"), marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.soak) for each in (("--pp", "2"), ("--tp", "2", "--pp", "2"))),
    ],
)
def test_answers_are_those_of_one_rank_also_after_a_kill(
    whole: dict[str, tuple[Any, ...]], files: tuple[Path, Path], split: tuple[str, ...]
) -> None:
    """In float32, where rounding does not decide between tokens."""
    with serving(*files, *split) as server:
        every_api_gets_a_valid_call(server)
        assert all_at_once(server) == whole
        assert all_at_once(server, kill=-1) == whole
        assert server.health().json()["recoveries"] == 1
        wait_until(lambda: server.health().json()["running"] == 0, 10, "the client that left is forgotten")


def every_api_gets_a_valid_call(server: Server) -> None:
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
