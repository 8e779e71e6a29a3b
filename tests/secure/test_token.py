import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import ConfigError
from ferrule.secure import JoinToken, derived_key, fingerprint

TOKEN = JoinToken("home", bytes(range(32)), (("192.168.1.5", 8421), ("fe80::1%thunderbolt0", 9000)))


def test_a_token_carries_key_name_and_addresses():
    assert JoinToken.decode(TOKEN.encode()) == TOKEN
    assert JoinToken.decode(TOKEN.encode() + "\n") == TOKEN
    assert JoinToken.decode(TOKEN.encode()[:40] + "\n  " + TOKEN.encode()[40:]) == TOKEN  # as a terminal wraps it


def test_a_token_of_an_earlier_version_is_one():
    older = (
        "ferrule1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh97Im4iOiJob21lIiwiYSI6WyIxOTIuMTY4LjEuNTo4NDIxIiw"
        "iW2ZlODA6OjEldGh1bmRlcmJvbHQwXTo5MDAwIl19XiMSiA"
    )
    assert JoinToken.decode(older) == TOKEN


@given(st.integers(min_value=0), st.sampled_from("abcXYZ019-_"))
def test_a_wrong_letter_is_noticed(where, letter):
    text = TOKEN.encode()
    where = len("ferrule1-") + where % (len(text) - len("ferrule1-"))
    changed = text[:where] + letter + text[where + 1 :]
    if changed != text:
        with pytest.raises(ConfigError, match="token"):
            JoinToken.decode(changed)


@pytest.mark.parametrize(
    "text", ["", "junk", "ferrule1-", "ferrule1-AAAA", "ferrule1-" + "A" * 4000, TOKEN.encode()[:-3]]
)
def test_what_is_no_token_is_said_to_be_none(text):
    with pytest.raises(ConfigError, match="ferrule token"):
        JoinToken.decode(text)


def test_what_is_public_and_what_is_derived_follow_from_the_key_alone():
    assert fingerprint(TOKEN.key) == TOKEN.fingerprint == fingerprint(bytes(range(32)))
    assert fingerprint(bytes(32)) != TOKEN.fingerprint
    assert derived_key(TOKEN.key, "ray") != derived_key(TOKEN.key, "job 1") != derived_key(bytes(32), "job 1")
    assert TOKEN.key.hex() not in derived_key(TOKEN.key, "ray") + TOKEN.fingerprint
