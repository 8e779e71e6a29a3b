import struct

import pytest

from ferrule.cluster.handshake import WIRE, Caller, Purpose, answer_steps, call_steps
from ferrule.errors import AuthError, ClusterError
from ferrule.secure import Stranger

KEY, OTHER = bytes(range(32)), bytes(32)
ME = Caller("c" * 32, Purpose.ASK)
REFUSED = 2


def call(key=KEY, where="10.0.0.1:8421"):
    """A caller's steps, and its hello."""
    steps = call_steps(key, ME, where)
    hello = next(steps)
    assert steps.send(b"") == WIRE.reply.size
    return steps, hello


def answer(hello, key=KEY):
    """An agent's steps, and its challenge or refusal."""
    steps = answer_steps(key)
    assert next(steps) == WIRE.hello.size
    return steps, steps.send(hello)


def end_of(steps, said):
    with pytest.raises(StopIteration) as end:
        steps.send(said)
    return end.value.value


def hear(steps, said):
    """The agent's answer to a proof."""
    assert isinstance(steps.send(b""), int)
    return steps.send(said)


def test_both_ends_prove_themselves():
    caller, hello = call()
    agent, challenge = answer(hello)
    proof = caller.send(challenge)
    verdict = hear(agent, proof)
    assert end_of(agent, b"")[0] == ME
    assert caller.send(b"") == len(verdict)
    end_of(caller, verdict)


def test_another_cluster_and_another_key_are_told_apart():
    caller, hello = call(OTHER)
    agent, refusal = answer(hello)
    with pytest.raises(Stranger):
        agent.send(b"")
    with pytest.raises(AuthError, match="another cluster"):
        caller.send(refusal)
    # One that heard the fingerprint, and does not know the key:
    caller, hello = call(OTHER)
    agent, challenge = answer(hello[:36] + call()[1][36:44] + hello[44:])
    verdict = hear(agent, caller.send(challenge))
    with pytest.raises(Stranger):
        agent.send(b"")
    caller.send(b"")
    with pytest.raises(AuthError, match="refused this cluster's key"):
        caller.send(verdict)


def test_an_agent_that_does_not_know_the_key_is_not_believed():
    caller, hello = call()
    _, challenge = answer(hello)
    caller.send(challenge)
    caller.send(b"")
    with pytest.raises(AuthError, match="did not prove"):
        caller.send(challenge)  # a welcome without a proof


def test_an_echo_of_what_was_said_proves_nothing():
    caller, hello = call()
    _, challenge = answer(hello)
    proof = caller.send(challenge)
    again, _ = answer(hello)  # replayed to another connection
    hear(again, proof)
    with pytest.raises(Stranger):
        again.send(b"")


def test_another_protocol_is_refused_with_both_versions():
    caller, hello = call(where="strix-2:8421")
    # As the first version, which did not encrypt, says it.
    reply = struct.pack("<8s H 24s B x 32s 128s", b"FERRULEC", 1, b"9.9.9", 3, b"", b"")
    with pytest.raises(ClusterError, match=r"strix-2:8421 runs ferrule 9\.9\.9, this host ferrule .*same version"):
        caller.send(reply)
    agent, refusal = answer(hello[:8] + struct.pack("<H", 1) + hello[10:])
    assert len(refusal) == len(reply)
    assert WIRE.parse_reply(refusal).status == REFUSED
    with pytest.raises(Stranger):
        agent.send(b"")


def test_what_is_not_ferrule_is_a_stranger_on_both_sides():
    with pytest.raises(Stranger):
        answer(b"GET / HTTP/1.1\r\n".ljust(WIRE.hello.size, b"x"))
    caller, _ = call()
    with pytest.raises(ClusterError, match="not Ferrule"):
        caller.send(b"HTTP/1.1 400 Bad Request".ljust(WIRE.reply.size))


def test_a_stranger_learns_nothing_of_the_cluster():
    """But that this is Ferrule, and its version."""
    _, refusal = answer(call(OTHER)[1])
    assert refusal[:8] == b"FERRULEC"
    assert not refusal[36:].strip(b"\0")
