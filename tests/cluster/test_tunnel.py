"""A tunnel between two hosts: who has the key is led through, and nobody else."""

from __future__ import annotations

import asyncio

import pytest

from ferrule.cluster import tunnel
from ferrule.errors import AuthError, ClusterError

KEY, OTHER = bytes(range(32)), bytes(32)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data[::-1])
        await writer.drain()
    writer.close()


def place_of(server: asyncio.Server) -> tuple[str, int]:
    return server.sockets[0].getsockname()[:2]


def in_tunnel(body, key=KEY):
    async def main():
        async with asyncio.timeout(30), await asyncio.start_server(echo, tunnel.LOOPBACK, 0) as program:
            far = await tunnel.far_end(KEY, (tunnel.LOOPBACK, 0), place_of(program))
            async with far, await tunnel.near_end(key, place_of(far)) as near:
                await body(place_of(near), place_of(far), program)

    asyncio.run(main())


async def said(place, data):
    reader, writer = await asyncio.open_connection(*place)
    writer.write(data)
    try:
        return await reader.readexactly(len(data))
    finally:
        writer.close()


def test_bytes_go_through_both_ways():
    async def body(near, far, program):
        data = bytes(range(256)) * 4
        answers = await asyncio.gather(*(said(near, data + bytes([each])) for each in range(4)))
        assert [sorted(each) for each in answers] == [sorted(data + bytes([each])) for each in range(4)]

    in_tunnel(body)


def test_a_stranger_is_not_let_in():
    async def body(near, far, program):
        with pytest.raises(AuthError, match="refused the tunnel's key"):
            await tunnel.led_to(OTHER, far)
        with pytest.raises(asyncio.IncompleteReadError):
            await said(far, b"RPC?" * 100)
        with pytest.raises(asyncio.IncompleteReadError):  # the near end has another key: the program sees nobody
            await said(near, b"hello")

    in_tunnel(body, OTHER)


def test_what_is_no_tunnel_is_not_trusted():
    async def main():
        async def talk(reader, writer):
            writer.write(b"x" * 4096)
            await writer.drain()
            writer.close()

        async with asyncio.timeout(30), await asyncio.start_server(talk, tunnel.LOOPBACK, 0) as other:
            with pytest.raises(ClusterError, match="is no tunnel of this version"):
                await tunnel.led_to(KEY, place_of(other))

    asyncio.run(main())


def test_strangers_that_say_nothing_are_hung_up_on(monkeypatch):
    monkeypatch.setattr(tunnel, "HANDSHAKE_SECONDS", 0.05)

    async def body(near, far, program):
        reader, writer = await asyncio.open_connection(*far)
        assert await reader.read() == b""
        writer.close()

    in_tunnel(body)
