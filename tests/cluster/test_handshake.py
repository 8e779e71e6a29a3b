import struct

import pytest

from ferrule.cluster.handshake import HELLO_BYTES, REPLY_BYTES, AgentSide, Caller, CallerSide, Purpose, StrangerError
from ferrule.errors import AuthError, ClusterError

KEY, OTHER = bytes(range(32)), bytes(32)
HOST = "c" * 32


def shake(agent_key=KEY, caller_key=KEY, fake_name=False):
    caller, agent = CallerSide(caller_key, Caller(HOST, Purpose.ASK), "10.0.0.1:8421"), AgentSide(agent_key)
    if fake_name:  # somebody who heard the fingerprint and does not know the key
        name = CallerSide(agent_key, Caller(HOST, Purpose.ASK), "").hello[36:44]
        caller.hello = caller.hello[:36] + name + caller.hello[44:]
    answer, go_on = agent.challenge(caller.hello)
    proof = caller.prove(answer)
    assert go_on
    verdict, who, keys = agent.judge(proof)
    return caller.finish(verdict), who, keys


def test_both_ends_prove_themselves_and_have_the_same_keys():
    mine, who, theirs = shake()
    assert mine == theirs
    assert mine.from_agent != mine.from_caller
    assert who == Caller(HOST, Purpose.ASK)
    assert shake()[0] != mine  # another connection has other keys


def test_another_cluster_and_another_key_are_told_apart():
    with pytest.raises(AuthError, match="another cluster"):
        shake(caller_key=OTHER)
    with pytest.raises(AuthError, match="refused this cluster's key"):
        shake(caller_key=OTHER, fake_name=True)


def test_an_agent_that_does_not_know_the_key_is_not_believed():
    caller, agent = CallerSide(KEY, Caller(HOST, Purpose.ASK), "there"), AgentSide(KEY)
    challenge, _ = agent.challenge(caller.hello)
    caller.prove(challenge)
    with pytest.raises(AuthError, match="did not prove"):
        caller.finish(challenge)  # a welcome without a proof


def test_an_echo_of_what_was_said_proves_nothing():
    caller, agent = CallerSide(KEY, Caller(HOST, Purpose.ASK), "there"), AgentSide(KEY)
    challenge, _ = agent.challenge(caller.hello)
    proof = caller.prove(challenge)
    _, who, keys = AgentSide(KEY).judge(proof)  # replayed to another connection
    assert who is None
    assert keys is None


def test_another_protocol_is_refused_with_both_versions():
    caller = CallerSide(KEY, Caller(HOST, Purpose.ASK), "strix-2:8421")
    reply = struct.pack("<8s H 24s B x 32s 128s", b"FERRULEC", 99, b"9.9.9", 2, b"", b"")
    with pytest.raises(ClusterError, match=r"strix-2:8421 runs ferrule 9\.9\.9, this host ferrule .*same version"):
        caller.prove(reply)
    answer, go_on = AgentSide(KEY).challenge(caller.hello[:8] + struct.pack("<H", 99) + caller.hello[10:])
    assert not go_on
    assert len(answer) == REPLY_BYTES


def test_what_is_not_ferrule_is_a_stranger_on_both_sides():
    with pytest.raises(StrangerError):
        AgentSide(KEY).challenge(b"GET / HTTP/1.1\r\n".ljust(HELLO_BYTES, b"x"))
    with pytest.raises(ClusterError, match="not Ferrule"):
        CallerSide(KEY, Caller(HOST, Purpose.ASK), "there").prove(b"HTTP/1.1 400 Bad Request".ljust(REPLY_BYTES))


def test_a_stranger_learns_nothing_of_the_cluster():
    """But that this is Ferrule, and its version."""
    hello = CallerSide(OTHER, Caller(HOST, Purpose.ASK), "").hello
    answer, _ = AgentSide(KEY).challenge(hello)
    assert answer[:8] == b"FERRULEC"
    assert not answer[36:].strip(b"\0")
