"""The fixtures of canitoolcall, of the families whose formats are read here. Skipped where it is not installed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ferrule.serve.tools.families import Dialect, dialect
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
KNOWN = {
    "gpt-oss/llamacpp-builtin-python-recipient": "what is said to a tool that was not offered stays text",
    "gpt-oss/harmony-marker-in-arguments": "marks that are spelt out are not told from special tokens",
    "gpt-oss/harmony-marker-in-reasoning": "marks that are spelt out are not told from special tokens",
    "kimi/k2i-vllm-noise-between-markers": "noise within a section is text",
}
"""Fixtures that fail, and why."""


def format_of(fixture: Any) -> str | None:
    model = fixture.models[0].rpartition("/")[2]
    return OTHERS[model] if model in OTHERS else FAMILIES.get(fixture.family)


def parsed(speaks: Dialect, replay: Any, tools: Tools, size: int) -> ParseResult:
    reader = speaks.reader(replay.generation_prompt or "", tools)
    pieces = [replay.text[at : at + size] for at in range(0, len(replay.text), size)]
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
    failed, counts = set(), Counter[str]()
    for fixture in load_fixtures():
        name = format_of(fixture)
        if name is None:
            continue
        replay = ReplayInput.from_fixture(fixture, families[fixture.family])
        speaks = dialect("<think></think>", name)
        offered = (tool["function"] for tool in fixture.tools)
        tools = Tools({tool["name"]: tool.get("parameters") or {} for tool in offered})
        whole, tokens, bits = (parsed(speaks, replay, tools, size) for size in (len(replay.text) or 1, 4, 1))
        seen = Observation(whole, {"token": tokens, "one": whole, "rand:1:8": bits}, frozenset())
        status = case_status(run_checks(fixture, families[fixture.family], seen), frozenset()).value
        counts[status] += 1
        if status not in ("pass", "soft_pass"):
            failed.add(fixture.id)
    assert failed == set(KNOWN), counts
    assert counts["pass"] >= 390, counts
