"""Grammars of forced and strict calls: whatever they allow is read as calls whose arguments follow their schemas."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from fake_engine import TinyTokenizer, byte_level
from llguidance import LLTokenizer

from ferrule.engine import Constraint
from ferrule.engine.grammar import grammar_tokenizer, open_matcher, special_tokens
from ferrule.serve.tools.families import HARMONY, NAMES, Dialect, dialect
from ferrule.serve.tools.grammar.answer import Sought, constraint_of
from ferrule.serve.tools.grammar.in_json import lark_in_json
from ferrule.serve.tools.grammar.lark import Lark, UnconstrainableError
from ferrule.serve.tools.grammar.values import Written
from ferrule.serve.tools.parts import Call, CallPiece, Reasoning, Text, Tools
from ferrule.serve.tools.pieces import HEADS

SCHEMAS: dict[str, Any] = {
    "find": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 5},
            "kind": {"enum": ["a<b", "ü"]},
            "day": {"type": "string", "pattern": "^x[0-9]{2}/$"},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "maybe": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
            "deep": {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
        "required": ["text", "kind", "count"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = Tools(SCHEMAS)
VARIANTS = {"mistral": "[ARGS]", "deepseek": "```json", "glm": "</arg_key>\n"}
"""What templates of a family's other variant have."""
CASES = [(name, template) for name in NAMES for template in ("", *filter(None, (VARIANTS.get(name),)))]
END = 2
"""The token `<|user|>`, which no format has."""


class Said:
    """Answers that a constraint allows, chosen by chance among the allowed tokens, rare ones as likely as others."""

    def __init__(self, tokenizer: TinyTokenizer) -> None:
        self.tokenizer, source = tokenizer, tokenizer.to_json()
        assert source is not None
        self.known: LLTokenizer = grammar_tokenizer(source, tokenizer.backend.get_vocab_size(), [END])
        self.special = special_tokens(self.known, source)

    def answer(self, constraint: Constraint, seed: int, first: str = "", most: int = 4000) -> str:
        """One that begins with ``first``."""
        matcher, chance = open_matcher(self.known, constraint), random.Random(seed)
        tokens = list(self.tokenizer.encode(first, add_special_tokens=False)) if first else []
        for token in tokens:
            assert matcher.consume_token(token), (first, self.text(tokens))
        while True:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits).tolist()
            assert allowed, self.text(tokens)
            marks = [token for token in allowed if token in self.special.values() and token != END]
            if chance.random() < 0.5 and len(allowed) > 1:
                allowed = [token for token in allowed if token != END]
            token = chance.choice(marks if marks and chance.random() < 0.5 else allowed)
            if token == END:
                return self.text(tokens)
            tokens.append(token)
            assert matcher.consume_token(token)
            assert len(tokens) < most, self.text(tokens)

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=False)


def speaks_of(name: str) -> Dialect:
    return dialect("</think>", name)


@pytest.fixture(scope="module", params=[True, False], ids=["tokens", "text"])
def said(request: pytest.FixtureRequest) -> Said:
    """Of a tokenizer that has the marks of all formats as tokens, and of one that has none."""
    marks = {mark for name in NAMES for mark in speaks_of(name).special} if request.param else set[str]()
    return Said(byte_level(None, sorted(marks - {"<|end|>"})))


def read(
    speaks: Dialect, text: str, size: int, *, pieces: bool, tools: Tools = TOOLS
) -> tuple[list[tuple[str, Any]], str, str]:
    """Calls, text and reasoning of ``text`` that comes in pieces of ``size``."""
    reader = speaks.reader("", tools, pieces=pieces)
    parts = [part for at in range(0, len(text), size) for part in reader.push(text[at : at + size])]
    parts += reader.finish(ended=True)
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, CallPiece) and not part.name:
            calls[-1][1] += part.arguments
        elif isinstance(part, Call):
            assert isinstance(part, CallPiece) == pieces
            calls.append([part.name, part.arguments])
    told = ("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Text, Reasoning))
    return [(name, json.loads(arguments)) for name, arguments in calls], *told


def check(speaks: Dialect, text: str) -> tuple[list[tuple[str, Any]], str, str]:
    """What ``text`` is read as, whole and as it comes; each call follows its schema."""
    whole = read(speaks, text, len(text) or 1, pieces=False)
    assert read(speaks, text, 3, pieces=False) == whole
    if speaks.family in {*HEADS, HARMONY}:
        for size in (1, 7, len(text) or 1):
            assert read(speaks, text, size, pieces=True) == whole, text
    for name, arguments in whole[0]:
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(arguments)
    return whole


def compiled(said: Said, name: str, sought: Sought, template: str = "", prompt: str = "") -> Constraint:
    made = constraint_of(Lark(said.special), sought, speaks_of(name), template, prompt)
    assert made is not None
    return made


@pytest.mark.parametrize(("name", "template"), CASES)
def test_forced_calls_are_calls_that_follow_their_schemas(said: Said, name: str, template: str) -> None:
    speaks, sought = speaks_of(name), Sought(SCHEMAS, required=True, sure=True, reasons=False)
    several, one = (
        compiled(said, name, sought, template),
        compiled(said, name, replace(sought, parallel=False), template),
    )
    named = compiled(said, name, replace(sought, tools={"now": SCHEMAS["now"]}, parallel=False), template)
    most = 0
    for seed in range(6):
        calls, text, reasoning = check(speaks, said.answer(several, seed))
        assert (len(calls) > 0, text, reasoning) == (True, "", "")
        most = max(most, len(calls))
        assert len(check(speaks, said.answer(one, seed))[0]) == 1
    assert most > 1 or name == HARMONY
    assert check(speaks, said.answer(named, 1))[0] == [("now", {})]


PATCH = r"""
start: begin hunk{1,9} END // what is "free"
begin: "*** \"Begin\"\\" LF
hunk: mark /.{0,5}/ LF | "@" /[^\x00-\x1f<a-z]{0,4}\S?/ NL | TAB | "\x41".."Z" | "!".."/" | "A\t\"é"i | LOUD
mark: "+" | /[-\x22\p{Lu}]\//
TAB: "\t"+ /(?i:(?P<n>\x09|\t?)(?-i:s)){1,3}((?i)é[^é\n]|q*\x22)/
END: "*** End" /\r|(?s:.\.){1,2}|\W/?
LOUD: /(?i)ß|x/ & /[a-zß]/
%import common.LF
%import common (NEWLINE) // more
NL: /\x0a/
"""
ON_LINES = PATCH.replace("(?s:.", "(.").replace(r"\W", "x")
EDIT = Tools({"edit": {"properties": {"input": {"type": "string"}}}})
BARE = {"dsml", "dsml-spaced"}
"""Formats that end a text by a tag that it could spell."""


@pytest.mark.parametrize("name", NAMES)
def test_texts_follow_their_grammars(said: Said, name: str) -> None:
    speaks, most = speaks_of(name), 0
    source = ON_LINES if name in ("qwen-xml", "minimax") else PATCH
    sought = Sought({"edit": Written("input", source)}, required=True, sure=True, reasons=False)
    if name in BARE or (name == "glm" and "</arg_value>" not in said.special):
        with pytest.raises(UnconstrainableError, match="grammar of a text"):
            compiled(said, name, sought)
        return
    constraint, own = compiled(said, name, sought), Constraint("lark", source)
    for seed in range(2):
        text = said.answer(constraint, seed)
        calls, rest, _ = read(speaks, text, len(text), pieces=False, tools=EDIT)
        assert rest == ""
        for called, arguments in calls:
            assert (called, arguments.keys()) == ("edit", {"input"})
            tokens = said.tokenizer.encode(arguments["input"], add_special_tokens=False)
            matcher = open_matcher(said.known, own)
            assert matcher.try_consume_tokens(tokens) == len(tokens), arguments["input"]
            assert matcher.is_accepting()
            most = max(most, len(tokens))
    assert most > 30


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("start: A\n\nA: ~/x/", "line 3 of a grammar: '~'"),
        ("start: %json {}", "line 1 .*%json"),
        ("start: A\n%ignore /x/\nA: /x/", "line 2 .*%ignore"),
        ("start: A\nA: /a.*/ & B\nB: /[^b]/", "A of a grammar has '&'"),
        ("start: a\na[lazy]: /x.*/ B\nB: /y/", "lazy"),
        ("start: /a)/", "not opened"),
        ('start: /a " # b/x', "spaces and comments"),
        ("start: /(a/", "no end"),
        ("start: /a**/", "repeats nothing"),
        ("start: /[a-z&&[^b]]/", "sets of sets"),
        (r"start: /\p{Greek}/", "Unicode"),
        (r"start: /[z-a]/", "bad character range"),
        ("start: <|end|>", "<|end|>"),
        ("start: @other", "@other"),
    ],
)
def test_what_json_strings_cannot_have_names_its_line(source: str, why: str) -> None:
    with pytest.raises(UnconstrainableError, match=why):
        lark_in_json(source)


def test_a_terminal_that_runs_over_the_end_of_a_text_is_refused(said: Said) -> None:
    for source in (
        r"start: /[^x]+/",
        r"start: /(?s:.)*/",
        r"start: /(a|\n|<)*/",
        "%import common.C_COMMENT\nstart: C_COMMENT",
    ):
        sought = Sought({"edit": Written("input", source)}, required=True, sure=True, reasons=False)
        with pytest.raises(UnconstrainableError, match="ends of lines"):
            compiled(said, "qwen-xml", sought)
        compiled(said, "hermes", sought)


@pytest.mark.parametrize("name", NAMES)
def test_strict_calls_follow_their_schemas_once_they_begin(said: Said, name: str) -> None:
    """Text is free before; here it is what a model would write."""
    speaks = speaks_of(name)
    sought = Sought({**SCHEMAS, "other": None}, sure=True)
    forced = said.answer(compiled(said, name, replace(sought, tools=SCHEMAS, required=True, reasons=False)), 3)
    constraint = compiled(said, name, sought)
    calls = check(speaks, forced)[0]
    bare = name in ("llama-json", "pythonic")
    for before in ("",) if bare else ("", "I look < for [it] {now}\n") if name != HARMONY else ("",):
        matcher = open_matcher(said.known, constraint)
        tokens = said.tokenizer.encode(before + forced, add_special_tokens=False)
        assert matcher.try_consume_tokens(tokens) == len(tokens)
        assert check(speaks, before + forced)[0] == calls
        cut = forced.index("(") + 1 if name == "pythonic" else forced.index(calls[0][0])
        wrong = said.tokenizer.encode(before + forced[:cut] + "@", add_special_tokens=False)
        assert open_matcher(said.known, constraint).try_consume_tokens(wrong) < len(wrong)
    plain = "[1] {a} <b> no call" if name != HARMONY else "<|channel|>final<|message|>no call"
    matcher = open_matcher(said.known, constraint)
    tokens = [*said.tokenizer.encode(plain, add_special_tokens=False), END]
    assert matcher.try_consume_tokens(tokens) == len(tokens)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_calls_or_what_the_schema_allows_after_reasoning(said: Said, name: str) -> None:
    speaks = speaks_of(name)
    form = Constraint(
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "required": ["ok"],
                "properties": {"ok": {"type": "boolean"}},
                "additionalProperties": False,
            }
        ),
    )
    sought = Sought(SCHEMAS, sure=True, constraint=form)
    constraint = compiled(said, name, sought)  # marks that are text are in no template: there is no reasoning
    seen = set()
    for seed in range(12):
        calls, text, _ = check(speaks, said.answer(constraint, seed))
        assert bool(calls) != bool(text)
        seen.add(bool(calls))
        if text:
            assert json.loads(text)["ok"] in (True, False)
    assert seen == {True, False}
    opening, closing = ("[THINK]", "[/THINK]") if name == "mistral" else ("<think>", "</think>")
    thought = f"{opening}ü {{</thin{closing}\n\n"
    if name == HARMONY:
        thought = "<|channel|>analysis<|message|>ü {<|end|><|start|>assistant"
    constraint = compiled(said, name, sought, template="</think>[/THINK]")
    assert check(speaks, said.answer(constraint, 2, thought))[2].startswith("ü {")


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ({"pattern": "^a/[bc]{2}$"}, "a/[bc]{2}"),
        ({"pattern": "^(a|ü)b", "maxLength": 4}, "(a|ü)b.{0,2}"),
        ({"pattern": "b$", "minLength": 3, "maxLength": 3}, "(?s:..)b"),
        ({"format": "date"}, r"\d{4}-[01]\d-[0-3]\d"),
        ({"format": "uuid"}, "[0-9a-fA-F-]{36}"),
        ({"format": "ipv4"}, r"(\d{1,3}\.){3}\d{1,3}"),
        ({"format": "ipv6"}, "[0-9a-f:]{15,39}"),
        ({"format": "duration"}, "P[0-9DTHMSW]{2,}"),
        ({"const": "<x>"}, "<x>"),
    ],
)
def test_texts_without_quotes_follow_their_schema(said: Said, schema: Any, pattern: str) -> None:
    tools = {"say": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string", **schema}}}}
    for name in ("glm", "qwen-xml", "minimax"):
        forced = said.answer(compiled(said, name, Sought(tools, required=True, sure=True, reasons=False)), 1)
        for _, arguments in read(speaks_of(name), forced, 5, pieces=False)[0]:
            assert re.fullmatch(pattern, arguments["x"]), forced


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"x": {"type": "string", "format": "idn-email"}}}, "'idn-email'"),
        ({"properties": {"x": {"type": "string", "contentEncoding": "base64"}}}, "'contentEncoding' of a text"),
        ({"properties": {"a b>": {}}}, "the name 'a b>'"),
        ({"anyOf": [{"required": ["x"]}]}, "'anyOf' of an object"),
    ],
)
def test_what_a_format_without_json_cannot_be_held_to_is_refused(said: Said, schema: Any, why: str) -> None:
    sought = Sought({"say": {"type": "object", **schema}}, required=True, sure=True)
    with pytest.raises(UnconstrainableError, match=why):
        compiled(said, "glm", sought)
    if "anyOf" not in schema:  # JSON says more
        assert compiled(said, "hermes", sought)


def test_a_budget_needs_a_mark_that_is_a_token(said: Said) -> None:
    sought = Sought(budget=4)
    if said.special.get("</think>") is None:
        with pytest.raises(UnconstrainableError, match="not a token"):
            compiled(said, "hermes", sought, prompt="<think>")
        return
    for name, prompt, begin, end in (
        ("hermes", "<think>\n", "", "</think>"),
        ("mistral", "", "[THINK]", "[/THINK]"),
        (HARMONY, "", "<|channel|>analysis<|message|>", "<|end|>"),
    ):
        matcher = open_matcher(said.known, compiled(said, name, sought, prompt=prompt))
        thought = said.tokenizer.encode(f"{begin}wxyz", add_special_tokens=False)
        assert matcher.try_consume_tokens(thought) == len(thought)
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        assert said.text(allowed.tolist()) == end
    assert constraint_of(Lark(said.special), sought, Dialect(), "", "") is None
