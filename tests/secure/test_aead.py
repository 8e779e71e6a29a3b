"""Messages under AES-GCM: what may and may not open."""

from __future__ import annotations

import pytest

from ferrule.secure.aead import TAG_BYTES, Sealer

KEY = bytes(range(32))


def ends(purpose: str = "client") -> tuple[Sealer, Sealer]:
    return Sealer(KEY, "client"), Sealer(KEY, purpose)


def test_messages_open_in_their_order() -> None:
    sealer, opener = ends()
    for message in (b"", b"one", b"one", b"x" * 100_000):
        sealed = sealer.seal(message, b"head")
        assert len(sealed) == len(message) + TAG_BYTES
        assert opener.open(sealed, b"head") == message


def test_equal_messages_look_different_and_hide_what_they_say() -> None:
    sealer, _ = ends()
    one, other = (sealer.seal(b"a secret of some length", b"") for _ in range(2))
    assert one != other
    assert b"secret" not in one + other


@pytest.mark.parametrize("place", [0, 5, -1])
def test_an_altered_message_does_not_open(place: int) -> None:
    sealer, opener = ends()
    sealed = bytearray(sealer.seal(b"message", b"head"))
    sealed[place] ^= 1
    assert opener.open(bytes(sealed), b"head") is None


def test_what_goes_before_it_is_under_the_tag_too() -> None:
    sealer, opener = ends()
    assert opener.open(sealer.seal(b"message", b"head"), b"heed") is None


def test_a_repeated_or_dropped_message_does_not_open() -> None:
    sealer, opener = ends()
    first = sealer.seal(b"first", b"")
    assert opener.open(first, b"") == b"first"
    assert opener.open(first, b"") is None
    sealer, opener = ends()
    sealer.seal(b"dropped", b"")
    assert opener.open(sealer.seal(b"second", b""), b"") is None


def test_a_message_sent_back_or_under_another_key_does_not_open() -> None:
    sealer, opener = ends("server")
    assert opener.open(sealer.seal(b"message", b""), b"") is None
    assert Sealer(bytes(32), "client").open(sealer.seal(b"message", b""), b"") is None


def test_too_short_is_no_message() -> None:
    _, opener = ends()
    assert opener.open(b"short", b"") is None
