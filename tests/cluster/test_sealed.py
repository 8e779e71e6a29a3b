"""What a launcher and a supervisor say to each other over an agent's connection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import AuthError, ConfigError
from ferrule.launch.request import chosen_of, spread
from ferrule.launch.sealed import DOWN, UP, Opener, Sealer

SECRET = "5a" * 32


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 50))
def test_what_is_sealed_arrives_however_it_is_cut(texts, size):
    sealer, opener = Sealer(SECRET, DOWN), Opener(SECRET, DOWN)
    line = b"".join(map(sealer.seal, texts))
    found = [each for at in range(0, len(line), size) for each in opener.feed(line[at : at + size])]
    assert found == texts


def test_large_messages_are_cut_into_frames():
    text = bytes(range(256)) * 10_000
    assert b"".join(Opener(SECRET, UP).feed(Sealer(SECRET, UP).seal(text))) == text


def test_nobody_reads_alters_repeats_or_turns_a_frame_around():
    text = b"FERRULE_KEY=0123456789abcdef"
    sealer = Sealer(SECRET, DOWN)
    first, second = sealer.seal(text), sealer.seal(text)
    assert text not in first
    assert first[36:] != second[36:]
    altered = first[:-1] + bytes([first[-1] ^ 1])
    longer = b"\xff\xff\xff\xff" + first[4:]
    for wrong in (altered, longer, second, first + first, Sealer(SECRET, UP).seal(text), Sealer("00", DOWN).seal(text)):
        with pytest.raises(AuthError, match="altered"):
            list(Opener(SECRET, DOWN).feed(wrong))


@pytest.mark.parametrize(("ranks", "expected"), [(None, [1, 1, 1]), (4, [2, 1, 1]), (2, [1, 1]), (7, [3, 2, 2])])
def test_ranks_are_spread_evenly(ranks, expected):
    assert [entry.slots for entry in spread(["a", "b", "c"], ranks)] == expected


def test_only_hosts_that_are_up_are_chosen():
    assert [(entry.name, entry.slots) for entry in chosen_of(["a", "b"], None, "b:2", "the cluster")] == [("b", 2)]
    with pytest.raises(ConfigError, match="no host 'c' of the cluster is up, only a, b"):
        chosen_of(["a", "b"], None, "c", "the cluster")
    with pytest.raises(ConfigError, match="-n 0"):
        spread(["a"], 0)
