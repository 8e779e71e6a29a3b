"""Formats of tool calls: outputs as the families' public templates and model cards show them, whole and in pieces."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from fake_engine import byte_level
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import ConfigError
from ferrule.serve.answer.text import Detokenizer, Vocabulary
from ferrule.serve.tools.families import NAMES, THINK, Dialect, dialect, family_of
from ferrule.serve.tools.harmony import SPECIAL, TOKEN
from ferrule.serve.tools.parts import Call, Reasoning, Text, Tools

THOUGHT = THINK[:1]
TOOLS = Tools(
    {
        "find": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "deep": {"type": "object"},
                "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            },
        },
        "now": {},
    }
)
ASKED = {"text": 'say "hi" }]</b> ñ 你好 🙂', "count": 3, "deep": {"a": [1, {"b": "}"}], "c": None}, "maybe": True}
JSON = json.dumps(ASKED, ensure_ascii=False)
DEEP = json.dumps(ASKED["deep"])
FIND, NOW = ("find", ASKED), ("now", {})
BAR = "｜"


@dataclass(frozen=True)
class Said:
    family: str
    output: str
    calls: list[Any] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    prompt: str = ""
    ended: bool = True


def xml(opening: str, closing: str, *pairs: str) -> str:
    values = (ASKED["text"], "3", DEEP, "true")
    return "".join(opening.format(key) + value + closing for key, value in zip(ASKED, values, strict=True)) + "".join(
        pairs
    )


QWEN = f"<function=find>\n{xml('<parameter={}>', '</parameter>')}</function>"
QWEN_LINES = "<function=find>\n" + xml("<parameter={}>\n", "\n</parameter>\n") + "</function>"
GLM = xml("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n")
MINIMAX = xml('<parameter name="{}">', "</parameter>\n")
DSML = "".join(
    f'<{BAR}DSML{BAR}parameter name="{key}" string="{str(key == "text").lower()}">{value}</{BAR}DSML{BAR}parameter>\n'
    for key, value in zip(ASKED, (ASKED["text"], "3", DEEP, "true"), strict=True)
)
DSML_BLOCK = (
    f'<{BAR}DSML{BAR}function_calls>\n<{BAR}DSML{BAR}invoke name="find">\n{DSML}</{BAR}DSML{BAR}invoke>\n'
    f'<{BAR}DSML{BAR}invoke name="now">\n</{BAR}DSML{BAR}invoke>\n</{BAR}DSML{BAR}function_calls>'
)
DS_BEGIN, DS_END, DS_CALLS, DS_CALLS_END, DS_SEP = (
    f"<{BAR}tool▁{name}{BAR}>" for name in ("call▁begin", "call▁end", "calls▁begin", "calls▁end", "sep")
)
KIMI_NOW = "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>"
    f"{JSON}<|tool_call_end|>{KIMI_NOW}<|tool_calls_section_end|>"
)
HERMES = f'<tool_call>\n{{"name": "find", "arguments": {JSON}}}\n</tool_call>'
HERMES_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
HARMONY_CALL = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>" + JSON
PYTHON = f"find(text={ASKED['text']!r}, count=3, deep={ASKED['deep']!r}, maybe=True)"

GOOD = [
    Said("hermes", f"<think>\nhm\n</think>\n\nSure.\n{HERMES}\n{HERMES_NOW}", [FIND, NOW], "Sure.", "hm"),
    Said("hermes", f"{HERMES_NOW}\nand then", [NOW], "and then"),
    Said(
        "hermes",
        '<tool_call>{"name": "find", "arguments": {"text": "</tool_call>"}}</tool_call>',
        [("find", {"text": "</tool_call>"})],
    ),
    Said("hermes", f"hm</think>{HERMES_NOW}", [NOW], reasoning="hm", prompt="<|im_start|>assistant\n<think>\n"),
    Said(
        "qwen-xml",
        f"<tool_call>\n{QWEN_LINES}\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [FIND, NOW],
    ),
    Said("qwen-xml", f"First.\n{QWEN}\n</tool_call>", [FIND], "First."),
    Said("qwen-xml", "<function=find>\n<parameter=count>\n3\n</function>", [("find", {"count": 3})]),
    Said(
        "glm",
        f"\n<think>hm</think>\n<tool_call>find\n{GLM}</tool_call>\n<tool_call>now</tool_call>",
        [FIND, NOW],
        "",
        "hm",
    ),
    Said(
        "minimax",
        f'hm\n</think>\n\n<minimax:tool_call>\n<invoke name="find">\n{MINIMAX}</invoke>\n<invoke name="now">\n'
        "</invoke>\n</minimax:tool_call>",
        [FIND, NOW],
        "",
        "hm",
        prompt="]~b]ai\n<think>\n",
    ),
    Said("dsml", f"Yes.\n\n{DSML_BLOCK}", [FIND, NOW], "Yes."),
    Said("dsml-spaced", DSML_BLOCK.replace(f"DSML{BAR}", f"DSML{BAR} "), [FIND, NOW]),
    Said(
        "deepseek",
        f"Yes.{DS_CALLS}{DS_BEGIN}find{DS_SEP}{JSON}{DS_END}{DS_BEGIN}now{DS_SEP}{{}}{DS_END}{DS_CALLS_END}",
        [FIND, NOW],
        "Yes.",
    ),
    Said("deepseek", f"{DS_CALLS}{DS_BEGIN}function{DS_SEP}find\n```json\n{JSON}\n```{DS_END}{DS_CALLS_END}", [FIND]),
    Said("kimi", f"I see. {KIMI}", [FIND, NOW], "I see. "),
    Said(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "find", "arguments": {JSON}}}, {{"name": "now", "arguments": {{}}}}]',
        [FIND, NOW],
    ),
    Said(
        "mistral",
        f"[THINK]hm[/THINK]Ok[TOOL_CALLS]find[ARGS]{JSON}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{{}}",
        [FIND, NOW],
        "Ok",
        "hm",
    ),
    Said("llama-json", f'{{"name": "find", "parameters": {JSON}}}; {{"name": "now", "parameters": {{}}}}', [FIND, NOW]),
    Said(
        "llama-json",
        f'See: <|python_tag|>{{"type": "function", "name": "find", "parameters": {JSON}}}',
        [FIND],
        "See: ",
    ),
    Said("llama-json", '{"name": "Ann", "parameters": {}}', text='{"name": "Ann", "parameters": {}}'),
    Said("pythonic", f"[{PYTHON}, now()]", [FIND, NOW]),
    Said("pythonic", f"<|python_start|>[{PYTHON}]<|python_end|>", [FIND]),
    Said("pythonic", "[1] is a source", text="[1] is a source"),
    Said("harmony", f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{HARMONY_CALL}", [FIND], "", "hm"),
    Said("harmony", " to=functions.now<|channel|>commentary<|constrain|>json<|message|>{}<|call|>", [NOW]),
    Said(
        "harmony",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>so < it\n",
        text="so < it\n",
        reasoning="hm",
    ),
    Said("harmony", f'{HARMONY_CALL}<|end|><|start|>assistant to=python<|message|>print("hi")', [FIND]),
    Said("harmony", "<|channel|>commentary to=browser.open<|message|>{}<|end|><|message|>so", text="so"),
]
SPELT_OUT = [
    Said(
        "harmony",
        f"{TOKEN}<|channel|>analysis{TOKEN}<|message|>no <|call|>, <|channel|>final{TOKEN}<|end|>"
        f"{TOKEN}<|start|>assistant to=functions.find{TOKEN}<|channel|>commentary"
        f'{TOKEN}<|message|>{{"text": "<|end|>"}}{TOKEN}<|call|>',
        [("find", {"text": "<|end|>"})],
        reasoning="no <|call|>, <|channel|>final",
    ),
    Said("harmony", f"so: {TOKEN}<|end|><|message|>", text="so: <|message|>"),
]
"""Some marks are tokens, others text."""


def as_tokens(said: Said) -> Said:
    """``said`` where each mark is a token."""
    return replace(said, output=re.sub("|".join(map(re.escape, SPECIAL)), lambda mark: TOKEN + mark[0], said.output))


GOOD += [*(as_tokens(said) for said in GOOD if said.family == "harmony"), *SPELT_OUT]

BROKEN = [
    ("hermes", '<tool_call>\n{"name": "find", "arguments": {"count": NaN}}\n</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call> a <tool_call'),
    ("hermes", "<tool_call>"),
    ("qwen-xml", "<tool_call>\nno function\n</tool_call>"),
    ("qwen-xml", "<function=find>\nwords\n</function>"),
    ("glm", "<tool_call>find<arg_key>text</tool_call> <b>"),
    ("minimax", '<minimax:tool_call>\n<invoke name="find">words</invoke>'),
    ("dsml", f'<{BAR}DSML{BAR}invoke name="find">words</{BAR}DSML{BAR}invoke>'),
    ("deepseek", f"{DS_CALLS}{DS_BEGIN}find{DS_SEP}{{{DS_END}"),
    ("kimi", "<|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>{]<|tool_call_end|>"),
    ("kimi", "<|tool_calls_section_begin|> words <|tool_calls_section_end|> b"),
    ("kimi", "<|tool_calls_section_begin|> words"),
    ("mistral", "[TOOL_CALLS][1, 2] b"),
    ("mistral", "[TOOL_CALLS]find[ARGS]words"),
    ("mistral", "[TOOL_CALLS]"),
    ("llama-json", '{"name": "find", "parameters": [1]} {"'),
    ("llama-json", '<|python_tag|>print("hi")'),
    ("pythonic", "[find(1)]"),
    ("pythonic", "[find(text=open('x'))]"),
    ("pythonic", "[unknown()]"),
]


def read(said: Said, cuts: list[int]) -> tuple[list[Any], str, str]:
    """Calls, text and reasoning of what was ``said``, cut at ``cuts``; each call's arguments are checked to be JSON."""
    reader = Dialect(said.family, dialect("", said.family).think).reader(said.prompt, TOOLS)
    edges = [0, *sorted(cuts), len(said.output)]
    parts: list[Any] = []
    for begin, end in pairwise(edges):
        parts += reader.push(said.output[begin:end])
    parts += reader.finish(ended=said.ended)
    assert all(part.text for part in parts if not isinstance(part, Call))
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, Call)]
    told = ("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Text, Reasoning))
    return calls, *told


def every_cut(said: Said, expected: tuple[list[Any], str, str]) -> None:
    length = len(said.output)
    assert read(said, []) == expected
    assert read(said, list(range(1, length))) == expected
    for cut in range(1, length):
        assert read(said, [cut]) == expected, said.output[:cut]


@pytest.mark.parametrize("said", GOOD, ids=[f"{at}-{said.family}" for at, said in enumerate(GOOD)])
def test_calls_are_read_however_they_are_cut(said: Said) -> None:
    every_cut(said, (said.calls, said.text, said.reasoning))


@pytest.mark.parametrize(("family", "output"), BROKEN)
def test_what_is_no_call_is_text(family: str, output: str) -> None:
    every_cut(Said(family, output), ([], output, ""))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_a_model_writes_its_parts_do_not_depend_on_the_cuts(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(NAMES))
    words = sorted({word for said in GOOD if said.family == family for word in (said.output, *said.output.split(">"))})
    marks = [mark for name, shown in Dialect(family).shown().items() for mark in {name, shown}]
    pieces = st.sampled_from([*words, *sorted(marks), "<", ">", "{", "]", '"', " ", "\n", "a", "</think>"])
    output = "".join(data.draw(st.lists(pieces, max_size=6)))
    said = Said(family, output, ended=data.draw(st.booleans()), prompt=data.draw(st.sampled_from(["", "<think>"])))
    whole = read(said, [])
    assert read(said, list(range(1, len(output)))) == whole
    cuts = data.draw(st.lists(st.integers(0, len(output)), max_size=5))
    assert read(said, cuts) == whole


def test_marks_of_harmony_that_are_spelt_out_are_told_from_tokens() -> None:
    """By a tokenizer that has them; by another one each is a mark."""
    speaks = Dialect("harmony")
    pieces = ["<|channel|>", "analysis", "<|message|>", "end by <|ca", "ll|>", "<|end|>"]
    for specials, thought in ((SPECIAL, "end by <|call|>"), ((), "end by ")):
        tokenizer = byte_level(specials=specials)
        detokenizer = Detokenizer(Vocabulary(tokenizer), shown=speaks.shown())
        reader = speaks.reader("", TOOLS)
        tokens = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]
        parts = [part for token in tokens for part in reader.push(detokenizer.push(token))]
        parts += reader.finish(ended=True)
        assert "".join(part.text for part in parts if isinstance(part, Reasoning)) == thought
        assert specials == () or all(isinstance(part, Reasoning) for part in parts)


def test_a_call_that_is_cut_off_is_dropped_and_the_one_before_it_kept() -> None:
    first = f"{HERMES_NOW}\n"
    for cut in range(1, len(HERMES) - 1):
        calls, _, _ = read(Said("hermes", first + HERMES[:cut], ended=False), [])
        assert calls == [NOW]
    assert read(Said("hermes", first + HERMES[:40], ended=False), []) == ([NOW], "", "")


TEMPLATES = {
    "hermes": "<tools> {{ tools }} <tool_call>\n{'name': ...}</tool_call>",
    "qwen-xml": "<tool_call>\n<function=example>\n<parameter=a>\n1",
    "glm": "<tool_call>{{ name }}<arg_key>k</arg_key>",
    "minimax": '<minimax:tool_call>\n<invoke name="',
    "deepseek": f"{DS_CALLS}{DS_BEGIN}",
    "dsml": f'<{BAR}DSML{BAR}invoke name="',
    "dsml-spaced": f'<{BAR}DSML{BAR} invoke name="',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>",
    "mistral": "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]",
    "llama-json": '<|start_header_id|>{"name": f, "parameters": d}',
    "pythonic": "<|header_start|>assistant<|header_end|>",
    "harmony": "<|start|>assistant<|channel|>final<|message|>",
}


def test_the_family_is_told_by_the_template() -> None:
    assert {name: family_of(template) for name, template in TEMPLATES.items()} == {name: name for name in NAMES}
    assert family_of("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}") is None
    plain = dialect("{{ messages }}")
    assert (plain.family, plain.think, plain.special) == (None, (), frozenset())
    assert dialect("{{ '</think>' }}").think == THOUGHT
    assert dialect(TEMPLATES["hermes"], "none").family is None
    assert dialect(None, "kimi").family == "kimi"
    with pytest.raises(ConfigError, match="'qwen' is not one of auto, none, hermes"):
        dialect(None, "qwen")
    assert len(dialect(None, "mistral").new_id()) == 9
