"""Messages between agents, and what a wait that ran out of time leaves behind."""

import asyncio
import socket

import pytest

from ferrule.cluster.connection import Connection
from ferrule.cluster.messages import GetStatus, encode


async def _ends():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    return Connection(reader, writer, None), theirs


@pytest.mark.parametrize("cut", [0, 2, 4, 7])
def test_a_message_that_comes_too_late_in_two_pieces_is_received_by_the_next_call(cut):
    payload = encode(GetStatus())
    frame = len(payload).to_bytes(4, "little") + payload

    async def go():
        connection, other = await _ends()
        other.sendall(frame[:cut])
        with pytest.raises(TimeoutError):
            await connection.receive(0.05)
        other.sendall(frame[cut:] + frame)
        assert await connection.receive(5) == GetStatus()
        assert await connection.receive(5) == GetStatus()
        other.close()
        assert await connection.receive(5) is None
        connection.close()

    asyncio.run(go())
