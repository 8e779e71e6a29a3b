"""Mistral's format: ``[TOOL_CALLS]`` and a list of calls, or since Mistral Small 3.2 each ``NAME[ARGS]{…}``."""

from __future__ import annotations

from ferrule.serve.tools.arguments import MalformedError, call, call_of, json_end, read_json
from ferrule.serve.tools.parts import Block, Call, Markers, Tools

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral:
    markers = Markers((CALLS,), think=(("[THINK]", "[/THINK]"), ("<think>", "</think>")))
    special = (CALLS, ARGS, CALL_ID, "[THINK]", "[/THINK]")

    def read(self, text: str, tools: Tools, *, after_call: bool, ended: bool) -> Block | None:
        at = len(text) - len(text[len(CALLS) :].lstrip())
        if at == len(text):
            return None
        if text[at] not in "[{":
            return _named(text, at)
        end = json_end(text, at)
        if end is None:
            return None
        try:
            value = read_json(text[at:end])
            calls = tuple(call_of(each) for each in (value if isinstance(value, list) else [value]))
        except MalformedError:
            return Block(None, end)
        return Block(calls, end)


def _named(text: str, at: int) -> Block | None:
    found = text.find(ARGS, at)
    again = text.find(CALLS, at)
    if found < 0 or 0 <= again < found:
        return None if again < 0 else Block(None, again)
    begin = len(text) - len(text[found + len(ARGS) :].lstrip())
    if begin == len(text):
        return None
    name = text[at:found].partition(CALL_ID)[0]
    end = json_end(text, begin) if text[begin] == "{" else begin
    if end is None:
        return None
    try:
        return Block((_call(name, text[begin:end]),), end)
    except MalformedError:
        return Block(None, max(end, begin))


def _call(name: str, arguments: str) -> Call:
    return call(name, read_json(arguments))


MISTRAL = Mistral()
