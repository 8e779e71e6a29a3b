"""Faults in words: pure."""

from __future__ import annotations

import pytest

from ferrule.errors import ConfigError
from ferrule.lab.netns.faults import KINDS, Fault, parse_fault


def test_words_become_faults() -> None:
    for kind in KINDS:
        assert parse_fault([kind]) == Fault(kind)
    assert parse_fault(["cut"], 1) == Fault("cut", {}, 1)
    assert parse_fault(["delay=1ms", "loss=1%"], 0) == Fault(None, {"delay": 1e-3, "loss": 0.01}, 0)


@pytest.mark.parametrize(
    ("words", "sender", "said"),
    [
        ([], None, "name a fault: cut, unplug"),
        (["brake"], None, "there is no fault 'brake'; one of cut"),
        (["stall", "delay=1ms"], None, "there is no fault 'stall'"),
        (["stall"], 0, "stall happens to the whole cable"),
        (["delay=later"], None, "'later' is not a duration"),
    ],
)
def test_wrong_words_are_named(words: list[str], sender: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_fault(words, sender)
