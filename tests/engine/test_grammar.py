"""Grammars: what compiles, what is refused and why, and which tokens a tokenizer of each kind may say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ferrule.engine.grammar import MOST_CHARACTERS, GrammarError, any_of, grammar_tokenizer, open_matcher
from ferrule.engine.source import demo_path
from ferrule.engine.types import Constraint

SCHEMA = {"type": "object", "properties": {"ö": {"enum": ["é b", 1]}}, "required": ["ö"], "additionalProperties": False}


def demo() -> Tokenizer:
    return Tokenizer.from_file(str(Path(demo_path()) / "tokenizer.json"))


def byte_fallback() -> Tokenizer:
    """As Llama 2 has it: spaces are part of the words, unknown characters are bytes."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", '{"', "▁b", "é", '":']
    inner = Tokenizer(
        models.BPE({word: at for at, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    inner.add_special_tokens([AddedToken("</s>", special=True)])
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return inner


@pytest.fixture(scope="module")
def known() -> LLTokenizer:
    return grammar_tokenizer(demo().to_str(), 3072, [0])


def said(tokenizer: Tokenizer, known: LLTokenizer, constraint: Constraint) -> str:
    """An answer of tokens of which each is the last that is allowed."""
    matcher, tokens = open_matcher(known, constraint), list[int]()
    while not tokens or tokens[-1] not in known.eos_tokens:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        tokens.append(int(np.flatnonzero(bits)[-1]))
        assert matcher.consume_token(tokens[-1])
        assert len(tokens) < 200
    return tokenizer.decode(tokens[:-1])


@pytest.mark.parametrize("make", [demo, byte_fallback])
def test_tokenizers_of_both_kinds_say_what_a_schema_and_a_choice_allow(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    end = 0 if make is demo else 1
    # More rows than tokens, as embeddings have.
    known = grammar_tokenizer(tokenizer.to_str(), tokenizer.get_vocab_size() + 64, [end, 10**6])
    assert known.vocab_size == tokenizer.get_vocab_size() + 64
    assert json.loads(said(tokenizer, known, Constraint("json_schema", json.dumps(SCHEMA)))) in (
        {"ö": "é b"},
        {"ö": 1},
    )
    assert said(tokenizer, known, any_of(['Grüße "x"\n\\d', 'Grüße "x"\n\\e'])).removesuffix("d") in (
        'Grüße "x"\n\\',
        'Grüße "x"\n\\e',
    )
    assert said(tokenizer, known, Constraint("regex", "[a-c]{2}é")).endswith("é")


def test_json_has_one_space_at_most_between_its_tokens(known: LLTokenizer) -> None:
    matcher = open_matcher(known, Constraint("json_schema", json.dumps(SCHEMA)))
    assert matcher.consume_tokens(demo().encode("{ ").ids)
    assert not matcher.validate_tokens(demo().encode(" ").ids)
    assert not matcher.validate_tokens(demo().encode("\n").ids)


def test_a_time_has_an_end(known: LLTokenizer) -> None:
    def holds(schema: object, text: str) -> bool:
        ids = demo().encode(text).ids
        return bool(open_matcher(known, Constraint("json_schema", json.dumps(schema))).validate_tokens(ids) == len(ids))

    long = f"12:02:42.{'5' * 80}Z"
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": "time"}}, "required": ["format"]}
    assert holds(schema, '{"format": "12:02:42.5Z"')
    assert not holds(schema, json.dumps({"format": long}))
    own = {"type": "string", "format": "time", "maxLength": 100}
    assert holds(own, f'"{long}"'), "a length of the schema's own stays"
    assert holds({"const": {"format": "time"}}, '{"format": "time"}')


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"$ref": "#"}', "no text satisfies it"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 2}', "greater than maximum"),
        ("json_schema", '{"$ref": "https://example.org/x"}', "not present"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", "[" * 5000 + "]" * 5000, "recursion"),
        ("json_schema", f'{{"const": "{"x" * MOST_CHARACTERS}"}}', "more than"),
        ("regex", "a(b", "unclosed group"),
        ("lark", "start: b", "unknown name"),
        ("lark", 'b: "x"', "no start rule"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_and_says_why(known: LLTokenizer, kind: str, text: str, why: str) -> None:
    with pytest.raises(GrammarError, match=why) as caught:
        open_matcher(known, Constraint(kind, text))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_schema_that_grows_by_each_of_its_parts_is_too_large_and_not_endless(known: LLTokenizer) -> None:
    parts: dict[str, object] = {"p0": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
    for at in range(1, 25):
        both = [{"$ref": f"#/$defs/p{at - 1}"}, {"anyOf": [{"minLength": at}, {"maxLength": 50 + at}]}]
        parts[f"p{at}"] = {"allOf": both}
    with pytest.raises(GrammarError, match="too large"):
        open_matcher(known, Constraint("json_schema", json.dumps({"$defs": parts, "$ref": "#/$defs/p24"})))


def test_tokenizers_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(GrammarError, match="tokenizer") as caught:
        grammar_tokenizer('{"version": "1.0"}', 10, [1])
    assert caught.value.code == "unsupported"
    with pytest.raises(GrammarError, match="end token"):
        grammar_tokenizer(demo().to_str(), 3072, [5000])
