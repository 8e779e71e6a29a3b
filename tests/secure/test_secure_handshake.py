"""The handshake, plain and in TLS, against strangers, men in the middle, replays and wrong keys."""

import ssl

import pytest
from exchanges import KEY, OTHER, WIRE, client, converse, server
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import AuthError
from ferrule.secure import Stranger
from ferrule.secure.handshake import Status, WrongKey
from ferrule.secure.tls import Tls, _client_context, _own_certificate, client_opening, server_opening

PLAIN, ENCRYPTED = (None, None), (client_opening, server_opening())
TLS_HANDSHAKE = b"\x16"
"""First byte of a record in the clear (RFC 8446, 5.1)."""
BOTH = pytest.mark.parametrize("openings", [PLAIN, ENCRYPTED], ids=["plain", "encrypted"])


def shake(openings, client_key=KEY, server_key=KEY, **more):
    return converse(client(client_key, openings[0]), server(server_key, openings[1]), **more)


@BOTH
def test_both_ends_come_to_the_same_key_and_no_two_connections_do(openings):
    one, two = shake(openings), shake(openings)
    assert one["client"].session_key() == one["server"][1].session_key() != two["client"].session_key()
    assert one["server"][0].fields == (-5, b"abcd")
    assert one["server"][0].kind == 1


@BOTH
def test_a_wrong_key_is_told_to_both_ends(openings):
    results = shake(openings, client_key=OTHER)
    assert isinstance(results["server"], WrongKey)
    assert results["client"].args[0].status == Status.WRONG_KEY


@BOTH
def test_what_was_recorded_is_worth_nothing(openings):
    said = []

    def record(name, message):
        said.extend([message] * (name == "client"))
        return message

    shake(openings, tamper=record)
    again = iter(said)
    results = shake(openings, tamper=lambda name, message: next(again, b"") if name == "client" else message)
    assert isinstance(results.get("server"), WrongKey | AuthError | None)
    assert not isinstance(results.get("client"), type(shake(openings)["client"]))


def test_a_proof_cannot_be_turned_around():
    """A server without the key sends the client its own proof."""
    steps = client()
    next(steps)
    steps.send(b"")
    proof = steps.send(WIRE.pack_reply(Status.WELCOME, bytes(32)))
    steps.send(b"")
    with pytest.raises(WrongKey):
        steps.send(WIRE.pack_reply(Status.WELCOME, proof))


def test_a_man_in_the_middle_is_found_out_by_both_ends():
    """One that has a certificate of its own for the client, and passes on what each end says to the other."""
    agent, seen = server(opening=server_opening()), {}

    def middle():
        hello = yield WIRE.hello.size
        next(agent)
        yield agent.send(hello)
        tls = Tls(_own_certificate.__wrapped__()[0], server=True)
        yield from tls.handshake()
        proof = yield from tls.read(32)
        seen.update(converse(towards_agent(proof), agent))
        yield from tls.write(WIRE.pack_reply(Status.WELCOME, proof))

    def towards_agent(proof):
        tls = Tls(_client_context(), server=False)
        yield from tls.handshake()
        yield from tls.write(proof)
        return WIRE.parse_reply((yield from tls.read(WIRE.reply.size)))

    results = converse(client(opening=client_opening), middle())
    assert isinstance(results["client"], WrongKey)
    assert isinstance(seen["server"], WrongKey)
    assert seen["client"].status == Status.WRONG_KEY


@BOTH
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.floats(0, 0.999), st.integers(1, 255))
def test_no_byte_of_it_can_be_altered_without_notice(openings, number, where, change):
    """But in the words for people, which are under no proof before both ends have one, and in the version that a TLS
    record tells for the sake of old middleboxes, which RFC 8446 (5.1) has receivers ignore."""
    seen = []
    benign = []

    def flip(name, message):
        seen.append(name)
        if len(seen) - 1 != number:
            return message
        at = int(where * len(message))
        benign.append(openings == ENCRYPTED and message[:1] == TLS_HANDSHAKE and at in (1, 2))
        return message[:at] + bytes([message[at] ^ change]) + message[at + 1 :]

    results = shake(openings, tamper=flip)
    if "client" in results and not isinstance(results["client"], Exception):
        # The verdict's own padding and text: the client goes by the proof in it.
        assert number >= 3
        assert openings == PLAIN or any(benign)


@pytest.mark.parametrize("openings", [PLAIN, ENCRYPTED], ids=["plain", "encrypted"])
@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_a_strangers_bytes_come_to_nothing(openings, garbage):
    def stranger():
        yield garbage
        yield 1 << 20

    results = converse(stranger(), server(opening=openings[1]))
    assert isinstance(results.get("server"), Stranger | WrongKey | AuthError | None)
    hello = WIRE.pack_hello(1, 1, b"")

    def half_stranger():
        yield hello
        yield WIRE.reply.size
        yield garbage
        yield 1 << 20

    results = converse(half_stranger(), server(opening=openings[1]))
    assert isinstance(results.get("server"), WrongKey | AuthError | None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=5), st.integers(1, 20_000))
def test_what_is_encrypted_arrives_however_it_is_cut(texts, size):
    results = shake(ENCRYPTED)
    one, two = results["client"].line, results["server"][1].line
    line = b"".join(map(one.encrypt, texts))
    assert b"".join(two.decrypt(line[at : at + size]) for at in range(0, len(line), size)) == b"".join(texts)
    answer = b"and back"
    assert one.decrypt(two.encrypt(answer)) == answer


def test_no_one_reads_alters_repeats_or_turns_a_record_around():
    text = b"FERRULE_KEY=0123456789abcdef"
    for change in (
        lambda first, second: first[:-1] + bytes([first[-1] ^ 1]),
        lambda first, second: second,
        lambda first, second: first + first,
    ):
        results = shake(ENCRYPTED)
        one, two = results["client"].line, results["server"][1].line
        first, second = one.encrypt(text), one.encrypt(text)
        assert text not in first
        assert first != second
        with pytest.raises(AuthError, match="altered"):
            two.decrypt(change(first, second))
        with pytest.raises(AuthError, match="altered"):
            one.decrypt(first)


def test_only_tls_1_3_is_spoken():
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    for context, refused in ((old, True), (_client_context(), False)):
        results = converse(Tls(context, server=False).handshake(), Tls(_own_certificate()[0], server=True).handshake())
        assert isinstance(results["server"], AuthError) is refused
