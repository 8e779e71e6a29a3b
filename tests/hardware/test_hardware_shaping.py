"""Shaping of a cable, in numbers and text: pure."""

from __future__ import annotations

import pytest

from ferrule.errors import ConfigError
from ferrule.lab import CableSpec, Shaping, pair, parse_changes


def test_words_become_numbers_and_words_again() -> None:
    words = "rate=2.5Gb/s delay=300us jitter=20us loss=1% corrupt=0.001 collapse=60% queue=64KiB overhead=24"
    changes = parse_changes(words.split())
    assert changes == {
        "rate": 2.5e9,
        "delay": pytest.approx(3e-4),
        "jitter": pytest.approx(2e-5),
        "loss": 0.01,
        "corrupt": 0.001,
        "collapse": 0.6,
        "queue": 65536,
        "overhead": 24,
    }
    shaping = Shaping(**changes)
    assert shaping.describe() == (
        "rate=2.5 Gb/s delay=300 µs jitter=20 µs loss=1 % corrupt=0.1 % collapse=0.6 queue=64 KiB overhead=24 B"
    )
    assert not shaping.plain
    assert shaping.takes_chances
    assert Shaping(rate=1e9).plain
    assert parse_changes(["rate=none"]) == {"rate": None}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("delay", "write for example delay=300us"),
        ("speed=1", "a cable has rate, delay"),
        ("delay=soon", "delay=soon: 'soon' is not a duration"),
        ("loss=101%", "loss=101%: '101%' is not a fraction"),
        ("rate=fast", "rate=fast: 'fast' is not a rate"),
        ("collapse=half", "'half' is not a number"),
    ],
)
def test_a_wrong_word_is_named(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_changes([word])


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"delay": -1.0}, "delay must be from 0 to 60 s, not -1"),
        ({"loss": 1.5}, "loss is a chance from 0 to 1"),
        ({"collapse": 0.5}, "give it a rate"),
        ({"rate": 1e9, "collapse": 3.0}, "at most 2"),
        ({"rate": 0.0}, "rate must be more than 0"),
        ({"overhead": -1}, "overhead"),
    ],
)
def test_what_no_cable_can_be_is_refused(numbers: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pair().shaped(**numbers)


def test_a_queue_holds_20_ms_unless_it_is_told() -> None:
    assert Shaping().queue_bytes == 64 << 20
    assert Shaping(rate=10e9).queue_bytes == 25_000_000
    assert Shaping(rate=1e6).queue_bytes == 256 * 1024
    assert CableSpec((0, 1), rate=1e9, queue=1000).shaping.queue_bytes == 1000
