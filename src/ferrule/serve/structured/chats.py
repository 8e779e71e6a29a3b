"""Constraint of a chat's answer: what its tools, its response format and its budget of reasoning ask for, together."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ferrule.engine import Constraint
from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import ChatRequest, unsupported
from ferrule.serve.structured.grammars import Grammars, asked_constraint
from ferrule.serve.tools.asked import Asked
from ferrule.serve.tools.families import Dialect
from ferrule.serve.tools.grammar.answer import NO_BUDGET, Sought, constraint_of
from ferrule.serve.tools.grammar.lark import Lark, UnconstrainableError
from ferrule.serve.tools.grammar.values import Schema, Written


@dataclass(frozen=True)
class TextTool:
    """Tool that takes one text, its parameter ``name``, which follows a ``grammar`` (a regular expression or Lark) if
    there is one. ``field``: of the request, which has that."""

    name: str
    grammar: Constraint | None = None
    field: str = "tools"

    @property
    def schema(self) -> Schema:
        if self.grammar is not None and self.grammar.kind == "lark":
            return Written(self.name, self.grammar.text)
        text = {"type": "string"}
        if self.grammar is not None:
            text["pattern"] = f"^(?:{self.grammar.text})$"
        fields = {"properties": {self.name: text}, "required": [self.name], "additionalProperties": False}
        return {"type": "object", **fields}


NO_TEXTS: Final[Mapping[str, TextTool]] = {}


@dataclass(frozen=True)
class Constrained:
    """``constraint`` of the answer. ``sure``: a call that begins is one in the end, with arguments that are JSON."""

    constraint: Constraint | None = None
    sure: bool = False


def constrained_chat(
    grammars: Grammars,
    body: ChatRequest,
    wanted: Asked,
    dialect: Dialect,
    template: str,
    prompt_end: str,
    *,
    texts: Mapping[str, TextTool] = NO_TEXTS,
) -> Constrained:
    """Constraint of the answer to a prompt that ends with ``prompt_end``. ``texts``: tools that take one text. Raises
    `RequestError` where it cannot be compiled. Takes up to some seconds: to be called beside the event loop."""
    asked = asked_constraint(body)
    forced, tools = wanted.forced is not None, wanted.tools is not None
    if tools and asked is not None and dialect.family is None:
        raise unsupported(
            "tools", "this model's format of calls has no grammar; leave them out, or the response format"
        )
    written = any(each.grammar is not None for each in texts.values())
    sure = tools and dialect.family is not None and (forced or bool(wanted.strict) or written or asked is not None)
    bounded = wanted.budget is not None and dialect.reasons
    if asked is None and not sure and not bounded:
        return Constrained()
    field = asked[0] if asked else "tool_choice" if forced else "tools" if sure else "reasoning_budget"
    try:
        lark = Lark(grammars.special(field))
    except RequestError:
        if field == "tools":  # calls that follow their schemas are a wish where nothing forces them
            return Constrained()
        raise
    if asked is not None:
        grammars.check(asked[1], field)
    for each in texts.values() if sure else ():
        if each.grammar is not None:
            grammars.check(each.grammar, each.field)
    sought = Sought(
        tools=_schemas(wanted, texts, loose=not forced) if tools else None,
        required=forced,
        parallel=wanted.parallel,
        sure=sure,
        constraint=asked[1] if asked else None,
        reasons=wanted.reasons,
        budget=wanted.budget,
    )
    try:
        constraint = constraint_of(lark, sought, dialect, template, prompt_end)
    except UnconstrainableError as error:
        param = "reasoning_budget" if str(error) == NO_BUDGET else field
        raise RequestError(f"{param}: not supported: {error}", param=param, code="unsupported") from None
    if constraint is not None and (fault := grammars.fault(constraint, field)) is not None:
        _locate(grammars, body, wanted.strict if wanted.forced is None else wanted.forced)
        raise RequestError(f"{field}: {fault}", param=field, code=fault.code)
    return Constrained(constraint, sure)


def _schemas(wanted: Asked, texts: Mapping[str, TextTool], *, loose: bool) -> dict[str, Schema]:
    """Of the tools that may be called. ``loose``: only those that are strict, or take a text, have a schema."""
    assert wanted.tools is not None
    made = dict[str, Schema]()
    for name, parameters in wanted.tools.parameters.items():
        if wanted.forced is not None and name not in wanted.forced:
            continue
        if name in texts:
            made[name] = texts[name].schema
            continue
        made[name] = None if loose and name not in wanted.strict else arguments_of(parameters)
    return made


def arguments_of(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Schema of a call's arguments, which are an object; without ``parameters`` an empty one, as OpenAI has it."""
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def _locate(grammars: Grammars, body: ChatRequest, names: Collection[str]) -> None:
    """Raise `RequestError` for the first tool of ``names`` whose schema cannot be compiled by itself."""
    for place, each in enumerate(body.tools or ()):
        if each.function.name in names:
            schema = arguments_of(each.function.parameters or {})
            grammars.check(Constraint("json_schema", json.dumps(schema)), f"tools[{place}].function.parameters")
