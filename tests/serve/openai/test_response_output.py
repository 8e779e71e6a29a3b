"""Items and events of calls that are cut, in the midst of whatever they say."""

from __future__ import annotations

import json

import pytest

from ferrule.serve.openai.responses.objects import Event
from ferrule.serve.openai.responses.output import Output
from ferrule.serve.openai.responses.tools import Offered, Origin
from ferrule.serve.tools.parts import CallPiece

OFFERED = Offered(origins={"patch": Origin("patch", custom=True)})
TEXT = '*** "Köln" 🙂\n' * 40
WRITTEN = json.dumps({"input": TEXT})


@pytest.mark.parametrize("size", [0, 1, 10, 14, 30, 300, len(WRITTEN) - 1, len(WRITTEN)])
def test_the_input_of_a_custom_call_is_what_was_written_of_it(size: int) -> None:
    told: list[Event] = []
    output = Output(OFFERED, told.append, summary=False, logprobs=False)
    output.add(CallPiece("patch", ""))
    for letter in WRITTEN[:size]:
        output.add(CallPiece("", letter))
    output.close("incomplete")
    (item,) = output.items
    whole = size == len(WRITTEN)
    assert item.status == ("completed" if whole else "incomplete")
    deltas = "".join(event.delta for event in told if event.type == "response.custom_tool_call_input.delta")
    assert deltas == item.input
    assert TEXT.startswith(item.input)
    assert item.input or size < 30
    assert not whole or item.input == TEXT


def test_half_a_character_takes_nothing_back() -> None:
    told: list[Event] = []
    output = Output(OFFERED, told.append, summary=False, logprobs=False)
    output.add(CallPiece("patch", ""))
    for piece in ('{"input": "a', "\\ud83d", "x", "y"):
        output.add(CallPiece("", piece))
    output.close("incomplete")
    assert output.items[0].input == "a"
