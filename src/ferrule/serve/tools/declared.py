"""Reader of answers by the response template that a model's tokenizer declares, with transformers' own parser.

Its templates say by which marks fields of a message open and close, and how a field's body is parsed. transformers (not
torch) is imported where a model declares one.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ferrule.serve.tools.arguments import MalformedError, call_of
from ferrule.serve.tools.parts import Part, Tools
from ferrule.serve.tools.reader import Output

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate

log = logging.getLogger(__name__)

_CALLS: Final = ("tool_calls", "tool_call")
_REASONING: Final = ("thinking", "reasoning", "reasoning_content")
_MARK: Final = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")


@dataclass(frozen=True, eq=False)
class Declared:
    """Response template. ``special``: what may be special tokens among its marks. ``calls``, ``reasons``: whether it
    has any of these."""

    template: ResponseTemplate
    special: frozenset[str]
    calls: bool
    reasons: bool

    def reader(self, prompt_end: str, tools: Tools | None) -> DeclaredReader:
        return DeclaredReader(self, prompt_end, tools)


def declared(told: Mapping[str, Any] | None) -> Declared | None:
    """The response template ``told``; None, with a warning, where it cannot be used."""
    if told is None:
        return None
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template

        template = load_response_template(dict(told))
    except (ImportError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("the response template of tokenizer_config.json is not used: %s", error)
        return None
    for field in template.fields.values():
        field.optional = True  # an answer without one is an answer, too
    marks = _MARK.findall(json.dumps(told, ensure_ascii=False).replace("\\", ""))
    calls, reasons = (any(name in template.fields for name in names) for names in (_CALLS, _REASONING))
    return Declared(template, frozenset(marks), calls, reasons)


class DeclaredReader:
    """Reader of one answer. Characters are fed one by one, so that its parts do not depend on how it is cut. From a
    call on that cannot be parsed everything is text."""

    def __init__(self, form: Declared, prompt_end: str, tools: Tools | None) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        template = form.template
        if tools is None:  # what would be calls is text
            template = copy.copy(template)
            template.fields = {name: field for name, field in template.fields.items() if name not in _CALLS}
        known = template.start_anchor_re.search(prompt_end) is not None
        offered = [{"name": name, "parameters": given} for name, given in (tools or Tools()).parameters.items()]
        self._parser = ResponseParser(template, prefix=prompt_end if known else "", tools=offered)
        self._out = Output()
        self._field = ""
        self._held = ""
        """What has been read since the last text, reasoning or call: marks, and the body of a call."""
        self._broken = False
        self._hear(self._parser.initial_events)
        self._out.take()

    def push(self, text: str) -> list[Part]:
        for character in text:
            self._take(character)
        return self._out.take()

    def finish(self, *, ended: bool) -> list[Part]:
        if not self._broken and (ended or self._field not in _CALLS):
            try:
                self._hear(self._parser.finalize()[1])
            except _FAULTS:
                self._give_up()
        self._out.close()
        return self._out.take()

    def _take(self, character: str) -> None:
        if self._broken:
            self._out.say(character)
            return
        self._held += character
        try:
            self._hear(self._parser.feed(character))
        except _FAULTS:
            self._give_up()

    def _hear(self, events: list[dict[str, Any]]) -> None:
        moved = False
        for event in events:
            name, kind = event["field"], event["type"]
            if kind == "region_chunk" and name not in _CALLS:
                self._chunk(name, event["text"])
            elif kind == "region_open":
                self._field, moved = name, True
            elif kind == "region_close":
                self._field, moved = "", True
                self._closed(name, event["value"])
        if moved and self._field not in _CALLS:
            self._held = ""

    def _chunk(self, name: str, text: str) -> None:
        if name in _REASONING:
            self._out.reason(text)
        else:
            self._out.say(text)
        self._held = self._held[self._held.rfind(text) + len(text) :]

    def _closed(self, name: str, value: Any) -> None:
        if name in _REASONING:
            self._out.end_reasoning()
        elif name in _CALLS:
            for each in [call_of(each) for each in (value if isinstance(value, list) else [value])]:
                self._out.call(each)

    def _give_up(self) -> None:
        self._broken = True
        self._out.say(self._held)


_FAULTS: Final = (MalformedError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What the parser raises for what models write wrongly, and we for what is no call."""
