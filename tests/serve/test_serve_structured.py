"""Structured output: each form that clients ask for it in becomes a constraint, and what cannot be is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine

from ferrule.engine import Constraint
from ferrule.serve.structured.fault import place_of_fault

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANY = {"type": "object"}


def chat(client: openai.OpenAI, **extra: Any) -> None:
    client.chat.completions.create(
        model="acme/fake-1b", messages=[{"role": "user", "content": "Hi"}], max_tokens=2, extra_body=extra
    )


def openais(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


def test_every_way_to_ask_becomes_the_constraint(client: openai.OpenAI, engine: FakeEngine) -> None:
    schema = Constraint("json_schema", json.dumps(SCHEMA))
    ways: list[tuple[dict[str, Any], Constraint | None]] = [
        (openais(SCHEMA), schema),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_schema", '{"type":"object"}')),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, schema),
        ({"structured_outputs": {"json_object": True}}, Constraint("json_schema", '{"type":"object"}')),
        ({"guided_json": json.dumps(SCHEMA), "response_format": {"type": "text"}}, schema),
        ({"structured_outputs": {"regex": "[ab]+"}}, Constraint("regex", "[ab]+")),
        ({"guided_regex": "[ab]+", "n": 2}, Constraint("regex", "[ab]+")),
        ({"guided_choice": ["a", 'b"']}, Constraint("lark", 'start: "a" | "b\\""')),
        ({"guided_grammar": 'start: "x" start | "y"'}, Constraint("lark", 'start: "x" start | "y"')),
    ]
    for extra, expected in ways:
        engine.calls.clear()
        chat(client, **extra)
        assert [call.params.constraint for call in engine.calls] == [expected] * extra.get("n", 1)
    engine.calls.clear()
    client.completions.create(model="acme/fake-1b", prompt="Hi", max_tokens=2, extra_body=openais(SCHEMA))
    assert engine.calls[0].params.constraint == schema


@pytest.mark.parametrize(
    ("extra", "param", "why"),
    [
        ({"response_format": "json"}, "response_format.type", "text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "must be an object"),
        (openais([1]), "response_format.json_schema.schema", "must be a JSON schema"),
        (openais({"properties": {"a": {"type": "strin"}}}), "response_format.json_schema.schema", "s/a: .*strin"),
        ({"guided_json": "{"}, "guided_json", "can be read"),
        ({"guided_regex": "a(b"}, "guided_regex", "unclosed group"),
        ({"guided_regex": ""}, "guided_regex", "not empty"),
        ({"guided_choice": []}, "guided_choice", "list of texts"),
        ({"guided_grammar": "start: x"}, "guided_grammar", "unknown name"),
        ({"structured_outputs": ["x"]}, "structured_outputs", "must be an object"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "true or false"),
        ({"guided_regex": "a", **openais(ANY)}, None, "only one of them"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, None, "only one of them"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_says_where(
    client: openai.OpenAI, engine: FakeEngine, extra: dict[str, Any], param: str | None, why: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=why) as caught:
        chat(client, **extra)
    assert param is None or caught.value.param == param
    assert not engine.calls


def test_a_model_whose_tokenizer_cannot_be_told_is_refused_by_name(
    serving: Callable[..., openai.OpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(engine.tokenizer, "to_json", lambda: None)
    client = serving(engine)
    with pytest.raises(openai.BadRequestError, match="tokenizer") as caught:
        chat(client, **openais(ANY))
    assert caught.value.code == "unsupported"
    chat(client)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"bad": 1}, ""),
        ({"properties": {"a": {}, "b/c~": {"items": {"bad": 1}}}}, "#/properties/b~1c~0/items"),
        ({"$defs": {"x": {"anyOf": [{}, {"bad": 1}]}}, "$ref": "#/$defs/x"}, "#/$defs/x/anyOf/1"),
        ({"prefixItems": [{"contains": {"bad": 1}}], "items": False}, "#/prefixItems/0/contains"),
        ({"properties": {str(each): {} for each in range(500)}, "not": {"bad": 1}}, ""),  # too many parts to try
        ({}, ""),
        (True, ""),
    ],
)  # fmt: skip
def test_the_place_of_a_fault_is_the_smallest_part_that_has_it(schema: Any, place: str) -> None:
    def fault_of(part: Any) -> str | None:
        own = json.dumps({name: value for name, value in part.items() if name != "$defs"} if part is not True else True)
        return "bad" if '"bad"' in own or '"$ref"' in own else None

    assert place_of_fault(schema, fault_of) == place
