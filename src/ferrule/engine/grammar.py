"""Grammars that constrain answers (structured output), by the llguidance library.

Compiled twice: beside the server, which refuses what cannot be compiled, and on the driver, which masks logits by them.
llguidance is imported when the first constrained request comes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ferrule.engine.types import Constraint
from ferrule.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_CHARACTERS = 1 << 17
"""Of a constraint: compiling it takes three seconds at most, and each mask a few milliseconds."""
WHITESPACE = "[ ]"
"""One or none between JSON's tokens, as most programs write it: with more, small models fill the context with it."""
MOST_OF_TIMES = 64
"""Characters of a text in one of the formats `_ENDLESS`: some 40 digits of a second."""
_ENDLESS = ("time", "date-time", "duration")
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""What is no schema."""
NO_STRUCTURE = (
    "structured output is not possible with this model: its tokenizer is read by a class of transformers and cannot be "
    "told as a tokenizer.json; put the tokenizer.json of a conversion of this model beside its other files"
)


class GrammarError(RequestError):
    """A constraint that cannot be compiled or followed; the message is llguidance's, without its place in a request."""

    code = "invalid_grammar"


def grammar_tokenizer(tokenizer: str, vocabulary: int, ends: Collection[int]) -> LLTokenizer:
    """Vocabulary as the library needs it: takes some 30 ms for 3,000 tokens, a second for 200,000. ``tokenizer``: as
    ``tokenizer.json`` has it. ``vocabulary``: number of logits. Raises `GrammarError` where it cannot be used, such as
    one that is neither byte-level nor falls back to bytes."""
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise GrammarError(
            "structured output needs the package llguidance, which is not installed on this host; "
            "install it: pip install llguidance",
            code="unsupported",
        ) from None
    inside = [token for token in ends if 0 <= token < vocabulary]
    if not inside:
        raise GrammarError("structured output needs an end token, and this model has none", code="unsupported")
    try:
        known = LLTokenizer(tokenizer, eos_token=inside)
        if known.vocab_size < vocabulary:  # some models' embeddings have more rows than there are tokens
            known = LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=inside)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise GrammarError(
            f"structured output is not possible with this model's tokenizer: {_first_line(str(error))}",
            code="unsupported",
        ) from None
    return known


def open_matcher(tokenizer: LLTokenizer, constraint: Constraint) -> LLMatcher:
    """Matcher that has seen no token yet. Raises `GrammarError` where there is no text that ``constraint`` allows, or
    none can be found within the limits of time and memory."""
    from llguidance import LLMatcher, LLParserLimits

    if len(constraint.text) > MOST_CHARACTERS:
        raise GrammarError(f"it has {len(constraint.text):,} characters, more than {MOST_CHARACTERS:,}")
    try:
        matcher = LLMatcher(
            tokenizer, _of_library(constraint), log_level=0, limits=LLParserLimits(verbose_errors=False)
        )
        matcher.compute_bitmask()  # which it is too complex for, tells only now
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise GrammarError(_first_line(str(error))) from None
    if matcher.is_error():
        raise GrammarError(told(matcher))
    if matcher.is_stopped() and not matcher.is_accepting():
        raise GrammarError("no text satisfies it")
    return matcher


def _of_library(constraint: Constraint) -> str:
    """``constraint`` as the library takes it: Lark, or its own JSON."""
    from llguidance import LLMatcher

    if constraint.kind == "json_schema":
        schema = json.dumps(bounded(json.loads(constraint.text)), ensure_ascii=False)
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE})
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.text)
    return LLMatcher.grammar_from_lark(constraint.text) if constraint.kind == "lark" else constraint.text


def bounded(schema: Any) -> Any:
    """``schema`` with a length of those texts in which a small model goes on with digits until the context is full."""
    if isinstance(schema, list):
        return [bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: each if name in _VALUES else bounded(each) for name, each in schema.items()}
    if found.get("format") in _ENDLESS and "maxLength" not in found:
        found["maxLength"] = MOST_OF_TIMES
    return found


def json_rule(schema: Any) -> str:
    """JSON of ``schema`` as part of a Lark grammar's rule."""
    schema = bounded(schema)
    own = schema if isinstance(schema, dict) else {"not": {}} if schema is False else {}
    return "%json " + json.dumps({**own, "x-guidance": {"whitespace_pattern": WHITESPACE}}, ensure_ascii=False)


def around(lark: str, inner: Mapping[str, Constraint]) -> Constraint:
    """The Lark grammar ``lark``, in whose rules ``@name`` stands for what that of ``inner`` allows."""
    if not inner:
        return Constraint("lark", lark)
    grammars = [{"lark_grammar": lark}]
    for name, each in inner.items():
        told = _of_library(each)
        part = json.loads(told)["grammars"][0] if told.startswith("{") else {"lark_grammar": told}
        grammars.append({**part, "name": name})
    return Constraint("grammars", json.dumps({"grammars": grammars}))


def special_tokens(tokenizer: LLTokenizer, known: str) -> dict[str, int]:
    """Tokens that are never text for the library, by their name: a grammar must name them by their id. ``known``: the
    tokenizer as ``tokenizer.json`` has it."""
    added = json.loads(known).get("added_tokens") or ()
    named = {each["content"]: each["id"] for each in added}
    return {name: token for name, token in named.items() if tokenizer.is_special_token(token)}


def told(matcher: LLMatcher) -> str:
    """Why ``matcher`` failed, in one line."""
    text = matcher.get_error().replace("<non-verbose/>", "").replace("json-schema:///", "").strip()
    return "no text satisfies it" if text.startswith("NoExtension") else " ".join(text.split())


def any_of(texts: Collection[str]) -> Constraint:
    """Constraint to one of ``texts``."""
    return Constraint("lark", "start: " + " | ".join(json.dumps(text) for text in texts))


def _first_line(text: str) -> str:
    return (text.strip() or "unknown fault").splitlines()[0][:300]
