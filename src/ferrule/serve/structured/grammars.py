"""From a request's fields to the grammar that its answer must follow, compiled once to refuse what cannot be."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ferrule.engine import Constraint, Engine, SamplingParams
from ferrule.engine.grammar import NO_STRUCTURE, GrammarError, any_of, grammar_tokenizer, open_matcher, special_tokens
from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import ChatRequest, GenerationRequest
from ferrule.serve.structured.fault import place_of_fault

if TYPE_CHECKING:
    from llguidance import LLTokenizer

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""Fields of vLLM's ``structured_outputs``, and of its older ``guided_…``."""
LOCATE_SECONDS = 2.0
"""Seconds in which the place of a fault is searched; most take milliseconds."""
_ANY_OBJECT = '{"type":"object"}'


def is_structured(body: GenerationRequest) -> bool:
    """Whether ``body`` has a grammar that is to be compiled."""
    if isinstance(body, ChatRequest):
        strict = any(each.function.is_strict for each in body.tools or ())
        if body.tool_choice not in (None, "none", "auto") or strict or body.thinking_limit is not None:
            return True
    return next(_asked(body), None) is not None


class Grammars:
    """Compiler of the grammars of one model's requests. Its tokenizer is read when the first one comes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._special: Mapping[str, int] | None = None

    def constrained(self, body: GenerationRequest, params: SamplingParams) -> SamplingParams:
        """``params`` with the constraint that ``body`` asks for, if any. Raises `RequestError` where it asks for two,
        or for one that cannot be compiled. Takes up to some seconds: to be called beside the event loop."""
        asked = asked_constraint(body)
        if asked is None:
            return params
        field, constraint = asked
        self.check(constraint, field)
        return replace(params, constraint=constraint)

    def special(self, field: str) -> Mapping[str, int]:
        """Ids of the tokenizer's special tokens, by name. Raises `RequestError` where ``field`` needs a grammar, which
        this tokenizer cannot follow."""
        self._read_tokenizer(field)
        assert self._special is not None
        return self._special

    def fault(self, constraint: Constraint, field: str) -> GrammarError | None:
        """Why ``constraint`` cannot be compiled."""
        try:
            open_matcher(self._read_tokenizer(field), constraint)
        except GrammarError as error:
            return error
        return None

    def check(self, constraint: Constraint, field: str) -> None:
        """Raises `RequestError` where ``constraint``, which ``field`` asks for, cannot be compiled."""
        error = self.fault(constraint, field)
        if error is not None:
            tokenizer, where = self._read_tokenizer(field), ""
            if constraint.kind == "json_schema":
                end = time.monotonic() + LOCATE_SECONDS
                where = place_of_fault(json.loads(constraint.text), lambda part: _fault(tokenizer, part, end))
            place = f"{field}: at {where}: " if where else f"{field}: "
            raise RequestError(f"{place}{error}", param=field, code=error.code) from None

    def _read_tokenizer(self, field: str) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                known, end = self._engine.tokenizer.to_json(), self._engine.tokenizer.eos_token_id
                if known is None:
                    raise RequestError(f"{field}: {NO_STRUCTURE}", param=field, code="unsupported")
                try:  # which token ends an answer makes no difference to what can be compiled
                    made = grammar_tokenizer(known, self._engine.vocab_size, [end or 0])
                except GrammarError as error:
                    raise RequestError(f"{field}: {error}", param=field, code=error.code) from None
                self._tokenizer, self._special = made, special_tokens(made, known)
            return self._tokenizer


def _fault(tokenizer: LLTokenizer, schema: Any, end: float) -> str | None:
    if time.monotonic() > end:
        return None
    try:
        open_matcher(tokenizer, Constraint("json_schema", json.dumps(schema)))
    except GrammarError as error:
        return str(error)
    return None


def asked_constraint(body: GenerationRequest) -> tuple[str, Constraint] | None:
    """The constraint that ``body`` asks for, with the field that does. Raises `RequestError` where there are two."""
    asked = list(_asked(body))
    if len(asked) > 1:
        fields = " and ".join(field for field, _ in asked)
        raise RequestError(f"{fields}: one answer can follow only one of them; leave out the others", param=fields)
    return asked[0] if asked else None


def _asked(body: GenerationRequest) -> Iterator[tuple[str, Constraint]]:
    """Every constraint that ``body`` asks for, with the field that does."""
    if body.response_format is not None:
        yield from _of_format(body.response_format)
    if body.structured_outputs is not None:
        given = body.structured_outputs
        if not isinstance(given, dict):
            raise _wrong("structured_outputs", f"must be an object with one of {', '.join(KINDS)}")
        for name, value in given.items():
            if name not in KINDS and value not in (None, False):
                raise _wrong(f"structured_outputs.{name}", f"not supported; use one of {', '.join(KINDS)}")
        for name in KINDS:
            yield from _of_kind(name, given.get(name), f"structured_outputs.{name}")
    for name in KINDS:
        yield from _of_kind(name, getattr(body, f"guided_{name}", None), f"guided_{name}")


def _of_format(given: Any) -> Iterator[tuple[str, Constraint]]:
    """By OpenAI's ``response_format``. ``strict`` changes nothing: every schema is followed to the letter."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "json_object":
        yield "response_format", Constraint("json_schema", _ANY_OBJECT)
    elif kind == "json_schema":
        inner = given.get("json_schema")
        if not isinstance(inner, dict) or "schema" not in inner:
            raise _wrong("response_format.json_schema", 'must be an object such as {"name": "…", "schema": {…}}')
        yield from _of_kind("json", inner["schema"], "response_format.json_schema.schema")
    elif kind != "text":
        raise _wrong("response_format.type", "must be text, json_object or json_schema")


def _of_kind(name: str, value: Any, field: str) -> Iterator[tuple[str, Constraint]]:
    if value is None or (name == "json_object" and value is False):
        return
    if name == "json":
        yield field, Constraint("json_schema", _schema_text(value, field))
    elif name == "json_object":
        if value is not True:
            raise _wrong(field, "must be true or false")
        yield field, Constraint("json_schema", _ANY_OBJECT)
    elif name == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise _wrong(field, "must be a list of texts, none of them empty")
        yield field, any_of([encodable(each, field) for each in value])
    elif not isinstance(value, str) or not value:
        raise _wrong(field, "must be a text that is not empty")
    else:
        yield field, Constraint("regex" if name == "regex" else "lark", encodable(value, field))


def _schema_text(value: Any, field: str) -> str:
    """A schema as JSON. It may come as text already."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(schema, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise _wrong(field, f"is no JSON schema that can be read: {error}") from None
    if not isinstance(schema, dict | bool):
        raise _wrong(field, "must be a JSON schema, which is an object")
    return encodable(text, field)


def encodable(text: str, field: str) -> str:
    """``text``, if it can be encoded; raises `RequestError`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(field, "is not valid Unicode: it has half of a surrogate pair") from None
    return text


def _wrong(field: str, why: str) -> RequestError:
    return RequestError(f"{field}: {why}", param=field, code="invalid_value")
