"""The rank's end of its control connection."""

from __future__ import annotations

import socket
import threading

import pytest

from ferrule.engine.messages import PIECE, Attach, Cancel, Failed, Meet, Order, decode_event, encode
from ferrule.engine.rank.control import CHUNK, MOST_CHUNKS, Control
from ferrule.errors import EngineError
from ferrule.process.lifeline import Lifeline


def test_images_are_taken_as_they_come_but_not_without_end() -> None:
    ours, theirs = socket.socketpair()
    sent: list[Order] = [*(Attach(1, bytes([number]) * PIECE) for number in range(16)), Cancel(1)]
    data = b"".join(map(encode, sent))
    assert len(data) > CHUNK * MOST_CHUNKS
    with ours:
        control = Control(Lifeline(theirs.detach()))
        assert control.orders(0.0) == []
        thread = threading.Thread(target=lambda: ours.sendall(data))
        thread.start()
        found: list[list[Order]] = []
        while not found or found[-1][-1:] != [Cancel(1)]:
            found.append(control.orders(10.0))
        thread.join()
        assert [order for each in found for order in each] == sent
        assert len(found) > 1, "steps go on in between"
        assert len(found) < len(data) // CHUNK, "not a chunk for each step"
    with pytest.raises(EngineError, match="is gone"):
        control.orders(10.0)


def test_orders_before_those_that_are_left_meet_anew_are_void_and_what_hangs_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        control = Control(Lifeline(theirs.detach()))
        ours.sendall(b"".join(map(encode, [Cancel(1), Attach(1, b"old"), Meet(3), Cancel(2)])))
        assert control.meet_anew(10.0) == Meet(3)
        with pytest.raises(EngineError, match=r"waited for 0\.01 s"):
            control.meet_anew(0.01)
        late = Failed("EngineError", "it hangs")
        with control.within(60.0, late):
            pass
        with control.within(0.0, late):
            assert decode_event(ours.recv(CHUNK).rstrip()) == late
