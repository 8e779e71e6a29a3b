"""Grammar of a whole answer: reasoning that may be bounded, then calls, text, or what a constraint allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ferrule.engine import Constraint
from ferrule.engine.grammar import around
from ferrule.serve.tools import harmony
from ferrule.serve.tools.families import FORMATS, HARMONY, Dialect
from ferrule.serve.tools.grammar.calls import Schemas, Shape, shape_of
from ferrule.serve.tools.grammar.lark import ANY, Lark, UnconstrainableError, either, quoted
from ferrule.serve.tools.grammar.values import as_json, checked

INNER: Final = "answer"
"""Name of the grammar that a request gives, within that of the whole answer."""
BEFORE: Final = r"/\s{1,2}/"
"""What some models write before the mark that opens their reasoning."""
BEHIND: Final = r"/\n{1,2}/"
"""And behind the one that closes it."""
NO_BUDGET: Final = "the end of this model's reasoning is not a token of its own, so it cannot be forced"


@dataclass(frozen=True)
class Sought:
    """What an answer may be. ``tools``: that may be called; ``required``: one must be, ``parallel``: several may be;
    ``sure``: their calls follow the schemas. ``constraint``: of what is no call. ``reasons``: whether there may be
    reasoning, of at most ``budget`` tokens."""

    tools: Schemas | None = None
    required: bool = False
    parallel: bool = True
    sure: bool = False
    constraint: Constraint | None = None
    reasons: bool = True
    budget: int | None = None


@dataclass(frozen=True)
class Reasons:
    """Reasoning of an answer. ``pairs``: marks around it. ``opened``: the prompt has opened it."""

    pairs: tuple[tuple[str, str], ...]
    opened: bool = False


def reasons_of(dialect: Dialect, template: str, prompt_end: str, tokens: Lark) -> Reasons:
    """Reasoning of the answer to a prompt that ends with ``prompt_end``: there may be some where the model's template
    or its tokenizer knows the marks, unless the prompt has it closed already."""
    end = prompt_end.rstrip()
    opened = next((pair for pair in dialect.think if end.endswith(pair[0])), None)
    if opened is not None:
        return Reasons((opened,), opened=True)
    known = tuple(pair for pair in dialect.think if pair[1] in template or tokens.is_special(pair[1]))
    return Reasons(() if any(end.endswith(closing) for _, closing in known) else known)


def constraint_of(lark: Lark, sought: Sought, dialect: Dialect, template: str, prompt_end: str) -> Constraint | None:
    """Constraint to what is ``sought``; None where any answer is that. Raises `UnconstrainableError`."""
    if dialect.family == HARMONY:
        body = _harmony(lark, sought)
    else:
        reasons = reasons_of(dialect, template, prompt_end, lark)
        if not reasons.pairs and sought.tools is None:
            return sought.constraint
        if sought.budget is not None and not (reasons.pairs or sought.sure or sought.constraint):
            return None
        body = _answer(lark, sought, reasons, dialect, template)
    source = lark.source(body)
    return around(source, lark.grammars | ({} if sought.constraint is None else {INNER: sought.constraint}))


def _answer(lark: Lark, sought: Sought, reasons: Reasons, dialect: Dialect, template: str) -> str:
    thought = ""
    if reasons.opened:
        budget = sought.budget if sought.reasons else 0
        thought = _thought(lark, reasons.pairs[0][1], budget)
    elif sought.reasons and reasons.pairs:
        options = [f"{lark.literal(opens)} {_thought(lark, closes, sought.budget)}" for opens, closes in reasons.pairs]
        thought = f"({lark.terminal(BEFORE)}? {either(*options)})?"
    exact = sought.constraint is not None or (sought.required and sought.sure)
    gap = f"{lark.terminal(BEHIND)}?" if thought and exact else ""
    return f"{thought} {gap} {_said(lark, sought, reasons, dialect, template)}"


def _thought(lark: Lark, closes: str, budget: int | None) -> str:
    """Reasoning from behind its opening mark on, its closing one included."""
    if budget is None:
        return lark.until(closes)
    if budget == 0:
        return lark.literal(closes)
    if not lark.is_special(closes):
        raise UnconstrainableError(NO_BUDGET)
    return f"{_bounded(lark, budget, (closes,))} {lark.literal(closes)}"


def _bounded(lark: Lark, budget: int, without: Sequence[str]) -> str:
    """Text of at most so many tokens, behind which only a special token may come: there is no other end to force."""
    return lark.rule(lark.terminal(lark.texts(without)), f"[max_tokens={budget}]")


def _said(lark: Lark, sought: Sought, reasons: Reasons, dialect: Dialect, template: str) -> str:
    """All but the reasoning."""
    if sought.tools is None or not (sought.sure or sought.constraint):
        if sought.constraint is not None:
            return f"@{INNER}"
        marks = {each for pair in dialect.think for each in pair}
        return lark.text(beside=_unlike(lark, reasons), allowed=sorted(dialect.special - marks))
    assert dialect.family is not None
    shape = shape_of(dialect.family, template)
    if sought.required or sought.constraint is not None:
        calls = shape.calls(lark, sought.tools, parallel=sought.parallel)
        return calls if sought.required else either(calls, f"@{INNER}")
    return _calls_in_text(lark, shape, sought, _unlike(lark, reasons), FORMATS[dialect.family].markers.opens)


def _calls_in_text(lark: Lark, shape: Shape, sought: Sought, beside: str, opens: Sequence[str]) -> str:
    """Text until a call begins, which then follows the schemas."""
    assert sought.tools is not None
    if shape.unlike is not None:
        unlike = " | ".join(each for each in (beside, shape.unlike(sought.tools)) if each)
        return either(
            lark.text(without=opens, beside=unlike), shape.calls(lark, sought.tools, parallel=sought.parallel)
        )
    calls = shape.calls(lark, sought.tools, parallel=sought.parallel, begun=True)
    text, called = lark.text(without=opens, beside=beside), f"{lark.until(shape.begin, without=opens)} {calls}"
    return f"({called})* {text}" if sought.parallel else either(called, text)


def _unlike(lark: Lark, reasons: Reasons) -> str:
    """Body of a terminal of texts that begin as reasoning does, where its mark is text itself."""
    spelt = [quoted(opens) for opens, _ in reasons.pairs if not reasons.opened and not lark.is_special(opens)]
    return f"(/\\s*/ {either(*spelt)} {ANY})" if spelt else ""


def _harmony(lark: Lark, sought: Sought) -> str:
    """Messages of gpt-oss (openai/harmony, docs/format.md): reasoning, what is said before a call, and one call or the
    answer. Its models end after a call."""
    marks, following = harmony.SPECIAL, "<|end|><|start|>assistant"

    def message(header: str, body: str) -> str:
        return f"{lark.literal(f'<|channel|>{header}<|message|>')} {body}"

    bound = sought.budget
    if bound and not lark.is_special("<|end|>"):
        raise UnconstrainableError(NO_BUDGET)
    analysis = ""
    if sought.reasons and bound is None:
        analysis = f"({message('analysis', lark.until(following, without=marks))})*"
    elif sought.reasons and bound:
        analysis = f"({message('analysis', _bounded(lark, bound, marks))} {lark.literal(following)})?"
    calls = [
        message(f"commentary to=functions.{checked(name)} <|constrain|>json", as_json(lark, schema))
        for name, schema in (sought.tools or {}).items()
    ]
    final = message("final", f"@{INNER}" if sought.constraint is not None else lark.text(without=marks))
    if sought.required or sought.constraint is not None:
        return f"{analysis} {either(*calls) if sought.required else either(*calls, final)}"
    before = f"({message('commentary', lark.until(following, without=marks))})?"
    return f"{analysis} {before} {either(*calls, final)}"
