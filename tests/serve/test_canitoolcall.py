"""The fixtures of canitoolcall, of the families whose formats are read here. Skipped where it is not installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ferrule.serve.tools.families import Dialect, dialect
from ferrule.serve.tools.harmony import TOKEN
from ferrule.serve.tools.parts import Reasoning, Text, Tools

pytest.importorskip("canitoolcall", reason="pip install canitoolcall")

from canitoolcall.adapters.base import ReplayInput
from canitoolcall.checks import case_status, run_checks
from canitoolcall.fixtures import load_families, load_fixtures
from canitoolcall.results import Observation, ParseResult, StreamAccumulator

pytestmark = pytest.mark.slow

FAMILIES = {
    "qwen3-hermes": "hermes",
    "qwen3-xml": "qwen-xml",
    "glm": "glm",
    "mistral": "mistral",
    "gpt-oss": "harmony",
    "kimi": "kimi",
    "deepseek": "deepseek",
    "llama": "llama-json",
}
OTHERS = {
    "DeepSeek-V3.2": "dsml",
    "DeepSeek-V4-Flash": "dsml",
    "DeepSeek-V4.1-Flash": "dsml-spaced",
    "Llama-4-Scout-17B-16E-Instruct": "pythonic",
    "Kimi-K3": None,
}
"""Models that write in another format than their family."""
HARMONY_TOKENS = {
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
}
"""Special tokens of gpt-oss (openai/harmony, docs/format.md)."""


def as_detokenized(text: str, tokens: Sequence[int]) -> str:
    """``text`` of gpt-oss as the reader gets it, in which those marks are told that are ``tokens``: each is the first
    one that reads so behind the one before."""
    made, at = "", 0
    for name in (HARMONY_TOKENS[token] for token in tokens if token in HARMONY_TOKENS):
        found = text.index(name, at)
        made += f"{text[at:found]}{TOKEN}{name}"
        at = found + len(name)
    return made + text[at:]


def format_of(fixture: Any) -> str | None:
    model = fixture.models[0].rpartition("/")[2]
    return OTHERS[model] if model in OTHERS else FAMILIES.get(fixture.family)


def parsed(speaks: Dialect, replay: Any, text: str, tools: Tools, size: int) -> ParseResult:
    reader = speaks.reader(replay.generation_prompt or "", tools)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    parts = [part for piece in pieces for part in reader.push(piece)]
    made = StreamAccumulator()
    for part in [*parts, *reader.finish(ended=not replay.truncated)]:
        match part:
            case Text(text):
                made.add_content(text)
            case Reasoning(text):
                made.add_reasoning(text)
            case _:
                made.append_tool_call(part.name, part.arguments)
    return made.result()


def test_the_fixtures_of_claimed_families_pass() -> None:
    families = load_families()
    failed, counts, marked = set(), Counter[str](), 0
    for fixture in load_fixtures():
        name = format_of(fixture)
        if name is None:
            continue
        replay = ReplayInput.from_fixture(fixture, families[fixture.family])
        speaks = dialect("<think></think>", name)
        offered = (tool["function"] for tool in fixture.tools)
        tools = Tools({tool["name"]: tool.get("parameters") or {} for tool in offered})
        text = replay.text
        if name == "harmony" and fixture.output_token_ids:
            text = as_detokenized(text, fixture.output_token_ids)
            marked += 1
        whole, tokens, bits = (parsed(speaks, replay, text, tools, size) for size in (len(text) or 1, 4, 1))
        seen = Observation(whole, {"token": tokens, "one": whole, "rand:1:8": bits}, frozenset())
        status = case_status(run_checks(fixture, families[fixture.family], seen), frozenset()).value
        counts[status] += 1
        if status not in ("pass", "soft_pass"):
            failed.add(fixture.id)
    assert not failed, counts
    assert counts["pass"] >= 394, counts
    assert marked >= 20
