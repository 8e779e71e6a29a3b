"""The acceptor of a rank whose groups live: which peers get in, which wait, and that hostile ones do not block it."""

from __future__ import annotations

import contextlib
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ferrule.errors import AuthError, FerruleError, RendezvousError
from ferrule.fabric.join.acceptor import Acceptor
from ferrule.fabric.join.control_channel import Abort, ControlChannel, Deadline, left
from ferrule.fabric.join.coordinator import Coordinator
from ferrule.fabric.join.dial import Call, dial, reach
from ferrule.fabric.join.handshake import Identity, Role, Session
from ferrule.fabric.join.listen import listen_on
from ferrule.fabric.join.messages import AllRouted, Routed
from ferrule.fabric.join.pending import NO_EPOCH, PendingPeers, Place

KEY = secrets.token_bytes(32)
EPOCH = secrets.token_bytes(16)


@pytest.fixture
def acceptor() -> Iterator[Acceptor]:
    one = Acceptor(KEY, 0, ())
    one.start()
    yield one
    one.close()


@pytest.fixture
def address(acceptor: Acceptor) -> tuple[str, int]:
    listener = listen_on("127.0.0.1", 0)
    acceptor.listen([listener])
    host, port = listener.getsockname()
    return host, port


def knock(
    address: tuple[str, int], *, rail: int = 0, epoch: bytes = EPOCH, key: bytes = KEY
) -> ControlChannel | FerruleError:
    (result,) = dial([Call(address, Identity(Role.MESSAGES, 1, 0, 2, epoch, rail))], key, Deadline(10))
    return result


def test_ranks_are_let_in_among_strangers(acceptor: Acceptor, address: tuple[str, int]) -> None:
    pending = PendingPeers(EPOCH, 0, 2, [Role.MESSAGES])
    acceptor.open(pending)
    strangers = [socket.create_connection(address, 5) for _ in range(300)]
    for stranger in strangers[:20]:
        stranger.sendall(secrets.token_bytes(64))
    channels = [knock(address, rail=rail) for rail in range(3)]
    assert all(isinstance(channel, ControlChannel) for channel in channels)
    taken = pending.take([Place(Role.MESSAGES, 1, rail) for rail in range(3)], Deadline(10))
    assert [channel.identity.rail for channel in taken.values()] == [0, 1, 2]
    taken[Place(Role.MESSAGES, 1, 2)].send({"a": 1}, Deadline(5))
    assert isinstance(channels[2], ControlChannel)
    assert channels[2].receive(dict, Deadline(5)) == {"a": 1}
    for one in [
        *strangers,
        *(channel.socket for channel in [*channels, *taken.values()] if isinstance(channel, ControlChannel)),
    ]:
        one.close()


def test_a_rank_that_is_ahead_waits_until_this_one_has_heard_of_the_group(
    acceptor: Acceptor, address: tuple[str, int]
) -> None:
    given_up = dial([Call(address, Identity(Role.MESSAGES, 1, 0, 2, EPOCH))], KEY, Deadline(0.2))
    assert isinstance(given_up[0], RendezvousError)
    results: list[ControlChannel | FerruleError] = []
    ahead = threading.Thread(target=lambda: results.append(knock(address)))
    ahead.start()
    deadline = time.monotonic() + 10
    while not acceptor._undecided:
        assert time.monotonic() < deadline
    pending = PendingPeers(EPOCH, 0, 2, [Role.MESSAGES])
    acceptor.open(pending)
    ahead.join(10)
    assert isinstance(results[0], ControlChannel)
    results[0].socket.close()


def test_leftovers_of_a_group_that_ended_are_refused(acceptor: Acceptor, address: tuple[str, int]) -> None:
    pending = PendingPeers(EPOCH, 0, 2, [Role.MESSAGES])
    acceptor.open(pending)
    acceptor.shut(pending, "this group has ended")
    assert "this group has ended" in str(knock(address))
    assert "another cluster key" in str(
        knock(address, key=secrets.token_bytes(32))
    ) or "refused our cluster key" in str(knock(address, key=secrets.token_bytes(32)))


def test_who_comes_by_several_addresses_at_once_is_one_process(acceptor: Acceptor, address: tuple[str, int]) -> None:
    pending = PendingPeers(EPOCH, 0, 2, [Role.RENDEZVOUS])
    acceptor.open(pending)
    second = listen_on("127.0.0.1", 0)
    acceptor.listen([second])
    addresses = [address, (second.getsockname()[0], second.getsockname()[1]), ("127.0.0.1", 1)]
    channel, call = reach(addresses, KEY, Identity(Role.RENDEZVOUS, 1, 0, 2, EPOCH), Deadline(10))
    assert call.address in addresses[:2]
    pending.take([Place(Role.RENDEZVOUS, 1)], Deadline(5))[Place(Role.RENDEZVOUS, 1)].socket.close()
    channel.socket.close()
    with pytest.raises(RendezvousError, match="two processes claim to be rank 1"):
        reach(addresses, KEY, Identity(Role.RENDEZVOUS, 1, 0, 2, EPOCH), Deadline(10))


def test_who_is_just_coming_when_a_rank_gives_up_is_told_why() -> None:
    one = Acceptor(KEY, 0, ())
    one.open(PendingPeers(NO_EPOCH, 0, 2, [Role.RENDEZVOUS]))
    listener = listen_on("127.0.0.1", 0)
    one.listen([listener])
    host, port = listener.getsockname()
    results: list[ControlChannel | FerruleError] = []
    call = Call((host, port), Identity(Role.RENDEZVOUS, 1, 0, 2))
    coming = threading.Thread(target=lambda: results.extend(dial([call], KEY, Deadline(10))))
    coming.start()
    assert select.select([listener], [], [], 10)[0]
    one.turn_away("rank 0 gave up: because")
    one.close()
    coming.join(20)
    assert "rank 0 gave up: because" in str(results[0])


def test_who_hangs_up_before_a_word_is_called_again(acceptor: Acceptor) -> None:
    first = listen_on("127.0.0.1", 0)
    host, port = first.getsockname()
    results: list[ControlChannel] = []
    identity = Identity(Role.RENDEZVOUS, 1, 0, 2)
    calling = threading.Thread(target=lambda: results.append(reach([(host, port)], KEY, identity, Deadline(20))[0]))
    calling.start()
    first.accept()[0].close()
    first.close()
    acceptor.open(PendingPeers(NO_EPOCH, 0, 2, [Role.RENDEZVOUS]))
    acceptor.listen([listen_on(host, port)])
    calling.join(20)
    assert results
    results[0].socket.close()


def test_the_port_is_free_after_the_acceptor_is_closed(address: tuple[str, int], acceptor: Acceptor) -> None:
    acceptor.close()
    acceptor.close()
    begin = time.monotonic()
    result = knock(address)
    assert "refused" in str(result)
    assert time.monotonic() - begin < 5


def test_calls_without_an_answer_are_given_up_soon_and_do_not_delay_others(
    acceptor: Acceptor, address: tuple[str, int]
) -> None:
    pending = PendingPeers(EPOCH, 0, 2, [Role.MESSAGES])
    acceptor.open(pending)
    with socket.socket() as full:
        # A queue that is full: to the caller, a host that does not answer.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        identity = Identity(Role.MESSAGES, 1, 0, 2, EPOCH)
        begin = time.monotonic()
        good, bad = dial([Call(address, identity), Call(full.getsockname(), identity)], KEY, Deadline(30))
        assert time.monotonic() - begin < 10
        assert isinstance(good, ControlChannel)
        assert "no answer" in str(bad)
        for one in [*waiting, good.socket]:
            one.close()


def test_an_acceptor_that_has_ended_can_still_be_spoken_to(acceptor: Acceptor) -> None:
    """Its thread may end, and put its bell away, just before another thread rings it."""
    acceptor.close()
    acceptor.open(PendingPeers(EPOCH, 0, 2, [Role.MESSAGES]))
    acceptor.listen(())
    acceptor.close()


def test_looking_whether_a_rank_gave_up_never_waits() -> None:
    session = Session(Identity(Role.RENDEZVOUS, 1, 0, 2), b"key")
    here, there = socket.socketpair()
    channel, other = ControlChannel(here, session, server=True), ControlChannel(there, session, server=False)
    here.settimeout(30)
    begin = time.monotonic()
    assert not channel.over
    assert not left(here)
    other.send({"reached": {}}, Deadline(5))
    assert not channel.over
    assert channel.receive(dict, Deadline(5)) == {"reached": {}}
    other.send(Abort("because"), Deadline(5))
    assert channel.over
    assert not left(here)
    with pytest.raises(RendezvousError, match="rank 1 gave up: because"):
        channel.receive(Routed, Deadline(5))
    there.close()
    assert channel.over
    assert left(here)
    assert time.monotonic() - begin < 10
    here.close()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (Routed(("why",)), None),
        (AllRouted(), "Invalid value 'AllRouted'"),
        ({"type": "Routed", "failed": "why"}, "Expected `array`"),
        ({"type": "Routed", "failed": [], "more": 1}, "unknown field `more`"),
        ({"type": "Routed"}, "missing required field `failed`"),
        (b"x" * (5 << 20), "a message of 6990510 bytes"),
    ],
)
def test_messages_are_checked_in_one_place(sent: object, problem: str | None) -> None:
    session = Session(Identity(Role.RENDEZVOUS, 1, 0, 2), b"key")
    here, there = socket.socketpair()
    channel, other = ControlChannel(here, session, server=True), ControlChannel(there, session, server=False)

    def send() -> None:
        with contextlib.suppress(RendezvousError):  # what is refused for its size is not read to its end
            other.send(sent, Deadline(5))

    sender = threading.Thread(target=send)
    sender.start()
    if problem is None:
        assert channel.receive(Routed, Deadline(5)) == sent
    else:
        with pytest.raises((RendezvousError, AuthError), match=re.escape(problem)):
            channel.receive(Routed, Deadline(5))
    here.close()
    sender.join(10)
    there.close()


def test_an_altered_message_is_refused_and_none_can_be_read_on_its_way() -> None:
    session = Session(Identity(Role.RENDEZVOUS, 1, 0, 2), b"key")
    (here, wire), (other_wire, there) = socket.socketpair(), socket.socketpair()
    channel, other = ControlChannel(here, session, server=True), ControlChannel(there, session, server=False)
    for altered in (False, True):
        other.send(Routed(("a reason",)), Deadline(5))
        passing = bytearray(other_wire.recv(1 << 16))
        assert b"reason" not in passing
        passing[-1] ^= altered
        wire.sendall(passing)
        if altered:
            with pytest.raises(AuthError, match="a message from rank 1 was altered on its way"):
                channel.receive(Routed, Deadline(5))
        else:
            assert channel.receive(Routed, Deadline(5)) == Routed(("a reason",))
    for one in (here, wire, other_wire, there):
        one.close()


def test_rank_0_is_believed_when_it_says_why_it_gave_up() -> None:
    session = Session(Identity(Role.RENDEZVOUS, 1, 0, 3), b"key")
    here, there = socket.socketpair()
    coordinator = Coordinator({0: ControlChannel(here, session, server=False)}, 1, Deadline(10))
    mine = RendezvousError("rank 2 left")
    assert coordinator.explain(mine) is mine
    leader = Coordinator({1: ControlChannel(there, session, server=True)}, 0, Deadline(10))
    assert leader.explain(mine) is mine
    leader.give_up(RendezvousError("rank 2 is missing"))
    assert "rank 0 gave up: rank 2 is missing" in str(coordinator.explain(mine))
    assert coordinator.explain(mine) is mine, "the other end is gone now"
    coordinator.close()
    assert coordinator.explain(mine) is mine
