"""Protection of the connection between two agents' hosts against listeners, strangers and slow senders."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from agents import KEY, SECONDS, desired, make_home, running
from ferrule.cluster.connection import connect
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.messages import CONTROL, BeginJob, GetStatus, Go, Refused, StartProcess, WriteModel
from ferrule.errors import AuthError, ClusterError

SECRET = "nobody-else-may-read-this"
RANK = f"""
import os, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
print(os.environ["WORD"])
while data := control.recv(65536):
    control.sendall(data.upper() + b"{SECRET}-from-the-rank")
"""


@asynccontextmanager
async def tapped(home):
    """A cable to the agent: where it begins, and what passes in each direction."""
    seen = [bytearray(), bytearray()]
    ends = []

    async def through(reader, writer):
        onwards = await asyncio.open_connection("127.0.0.1", home.settings.port)
        ends.extend([writer, onwards[1]])

        async def copy(source, sink, into):
            while data := await source.read(1 << 16):
                into += data
                sink.write(data)
            sink.close()

        await asyncio.gather(
            copy(reader, onwards[1], seen[0]), copy(onwards[0], writer, seen[1]), return_exceptions=True
        )

    server = await asyncio.start_server(through, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2], seen
    finally:
        server.close()
        for end in ends:
            end.close()


def test_nothing_that_is_said_can_be_read_on_the_cable(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent, tapped(home) as (cable, seen):
            life = await connect(cable, KEY, Caller(home.settings.host, Purpose.ASK))
            await life.ask(WriteModel(SECRET, desired(home.settings.host, model=SECRET)), SECONDS)
            assert agent.cluster.knowledge.models == {SECRET: desired(home.settings.host, model=SECRET)}
            await life.ask(BeginJob("job-1"), SECONDS)
            start = await connect(cable, KEY, Caller(home.settings.host, Purpose.START))
            await start.ask(StartProcess("job-1", 0, 1, ("-c", RANK, CONTROL), {"WORD": SECRET}), SECONDS)
            start.pause()
            await start.send(Go())
            reader, writer = await asyncio.open_connection(sock=await start.detach())
            start.close()
            writer.write(SECRET.encode() * 1000)
            async with asyncio.timeout(SECONDS):
                heard = await reader.readuntil(f"{SECRET}-from-the-rank".encode())
            assert heard.startswith(SECRET.upper().encode())
            writer.close()
            end = await life.receive(SECONDS)
            assert end.code == 0
            assert SECRET in end.tail
            life.close()
            for direction in seen:
                assert len(direction) > 1000
                assert SECRET.encode() not in direction
                assert SECRET.upper().encode() not in direction
                assert b'"type"' not in direction
                assert json.dumps("rank").encode() not in direction

    asyncio.run(scene())


def test_what_was_recorded_on_the_cable_opens_nothing(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent, tapped(home) as (cable, seen):
            life = await connect(cable, KEY, Caller(home.settings.host, Purpose.ASK))
            await life.ask(WriteModel("demo", desired(home.settings.host)), SECONDS)
            life.close()
            agent.cluster.write_model("demo", None)
            reader, writer = await asyncio.open_connection("127.0.0.1", home.settings.port)
            writer.write(bytes(seen[0]))
            async with asyncio.timeout(SECONDS):
                try:
                    answer = await reader.read()
                except ConnectionResetError:
                    answer = b""
            writer.close()
            assert len(answer) < len(seen[1])
            assert agent.cluster.knowledge.models == {}

    asyncio.run(scene())


def test_a_message_that_comes_slowly_is_received_in_the_end(tmp_path):
    """Whose first half had come when its time was over, too."""

    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home):
            for place in (home.socket, ("127.0.0.1", home.settings.port)):
                connection = await connect(place, KEY, Caller(home.settings.host, Purpose.ASK))
                arrived, release = bytearray(), asyncio.Event()
                read = connection._read

                async def slowly(read=read, arrived=arrived, release=release):
                    """All but one byte, and that when it may come."""
                    if not arrived:
                        arrived += await read()
                        return bytes(arrived[:-1])
                    await release.wait()
                    return bytes(arrived[-1:])

                connection._read = slowly
                await connection.send(GetStatus())
                with pytest.raises(TimeoutError):
                    await connection.receive(0.2)
                release.set()
                answer = await connection.receive(SECONDS)
                assert GetStatus().answer_from(answer.value).hosts[0].name == "first"
                connection.close()

    asyncio.run(scene())


def test_a_stranger_that_is_slow_is_hung_up_on(tmp_path, monkeypatch):
    """In plain, and where TLS has begun."""
    monkeypatch.setattr("ferrule.cluster.connection.HANDSHAKE_SECONDS", 1.0)

    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home), tapped(home) as (cable, seen):
            (await connect(cable, KEY, Caller(home.settings.host, Purpose.ASK))).close()

            async def stranger(said: bytes) -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", home.settings.port)
                writer.write(said)
                async with asyncio.timeout(1.0 + SECONDS):
                    await reader.read()  # until it hangs up
                writer.close()

            await asyncio.gather(stranger(bytes(seen[0][:20])), stranger(bytes(seen[0][:124])))

    asyncio.run(scene())


def test_a_message_larger_than_any_of_ours_is_refused(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home):
            for place in (home.socket, ("127.0.0.1", home.settings.port)):
                connection = await connect(place, KEY, Caller(home.settings.host, Purpose.ASK))
                with pytest.raises(ClusterError, match="more than agents send"):
                    await connection.send(Refused("x" * (5 << 20)))
                connection._write(b"\xff\xff\xff\x7f{}")
                assert await connection.receive(SECONDS) is None
                connection.close()
            with pytest.raises(AuthError, match="another cluster"):
                await connect(("127.0.0.1", home.settings.port), bytes(32), Caller("0" * 32, Purpose.ASK))

    asyncio.run(scene())
