import asyncio
import json
import os
import secrets
import socket
from dataclasses import replace

import msgspec
import pytest

from agents import KEY, SECONDS, desired, make_home, place, running, sees, until
from ferrule.agent.agent import _MAX_STRANGERS, Agent
from ferrule.agent.jobs import Job, tail
from ferrule.cluster import client, state
from ferrule.cluster.connection import connect
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.messages import (
    CONTROL,
    BeginJob,
    GetRay,
    GetReachable,
    GetStatus,
    Go,
    Introduction,
    Leave,
    Question,
    RankExited,
    StartProcess,
    WriteModel,
)  # fmt: skip
from ferrule.cluster.state import ClusterState
from ferrule.errors import AuthError, ClusterError
from ferrule.fabric.join.addresses import Interface
from ferrule.secure import derived_key

GREET = """
import json, os, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
word = control.makefile("r").readline()
port = socket.socket(fileno=int(os.environ["FERRULE_LISTEN_FD"])).getsockname()[1]
env = {name: value for name, value in os.environ.items() if name.startswith("FERRULE_")}
control.sendall(json.dumps({"heard": word.strip(), "port": port, "env": env}).encode() + b"\\n")
print("and these are my last words")
sys.exit(int(word))
"""


class Dance(Question[None], frozen=True):
    """A question that no agent of this version knows."""


def test_three_hosts_know_each_other_though_two_know_only_one(tmp_path):
    async def scene():
        first = make_home(tmp_path, "first")
        second, third = (make_home(tmp_path, name, seeds=(place(first),)) for name in ("second", "third"))
        async with running(first) as a, running(second) as b, running(third) as c:
            await until(lambda: all(sees(x, y) for x in (a, b, c) for y in (a, b, c) if x is not y))
            a.cluster.write_model("demo", desired(a.cluster.host))
            await until(lambda: c.cluster.knowledge.models == {"demo": desired(a.cluster.host)})
            found = await client.ask_here(third, GetReachable(SECONDS))
            await until(lambda: c.cluster.host in b.cluster.peers[a.cluster.host].saw)
            assert set(found) == {a.cluster.settings.host, b.cluster.settings.host, c.cluster.settings.host}
            status = await client.ask_here(second, GetStatus())
            assert {each.name: each.state for each in status.hosts} == {
                "first": "up", "second": "here", "third": "up",
            }  # fmt: skip
        # What was decided is still known where an agent starts again, alone.
        async with running(third) as c:
            assert c.cluster.knowledge.models == {"demo": desired(a.cluster.host)}
            assert {member.name for member in c.cluster.knowledge.members.values()} == {"first", "second", "third"}

    asyncio.run(scene())


def test_a_host_that_ends_is_noticed_and_so_is_its_return(tmp_path):
    async def scene():
        first = make_home(tmp_path, "first")
        second = make_home(tmp_path, "second", seeds=(place(first),))
        async with running(first) as a:
            for _ in range(2):
                async with running(second) as b:
                    await until(lambda b=b: sees(a, b) and sees(b, a))
                await until(lambda b=b: not sees(a, b))
                status = await client.ask_here(first, GetStatus())
                (gone,) = [each for each in status.hosts if each.name == "second"]
                assert gone.state == "stopped"
                assert gone.problem

    asyncio.run(scene())


def test_a_host_whose_cables_are_all_out_is_still_known_by_its_addresses(tmp_path, monkeypatch):
    """If the others heard of none when a cable is back for a moment, they could not find it after the next cut."""
    home = make_home(tmp_path, "first")
    home.write_settings(msgspec.structs.replace(home.settings, listen=""))
    faces = [Interface("cable0", "10.0.0.1", 24)]
    monkeypatch.setattr(state, "own_interfaces", lambda: tuple(faces))

    async def scene():
        known = ClusterState(home, lambda: None)
        known._introduce_own()
        faces.clear()
        known._introduce_own()
        assert known.knowledge.members[known.host].addresses == ("10.0.0.1",)
        faces.append(Interface("cable0", "10.0.0.2", 24))
        assert known.member.addresses == ("10.0.0.2",)
        await known.close()

    asyncio.run(scene())


def test_who_is_not_let_in_is_told_why(tmp_path):
    async def refusal(agent_home, home):
        async with running(home) as agent:
            (peer,) = agent.cluster._seeds.values()
            await until(lambda: peer.problem is not None)
            return peer.problem

    async def scene():
        first = make_home(tmp_path, "first")
        async with running(first) as a:
            stranger = make_home(tmp_path, "stranger", key=secrets.token_bytes(32), seeds=(place(first),))
            assert "another cluster" in await refusal(first, stranger)
            twin = make_home(tmp_path / "elsewhere", "first", seeds=(place(first),))
            assert "choose another name" in await refusal(first, twin)
            leaver = make_home(tmp_path, "leaver", seeds=(place(first),))
            a.cluster.write_host(leaver.settings.host, None)
            assert "has left the cluster" in await refusal(first, leaver)
            assert [member.name for member in a.cluster.knowledge.members.values()] == ["first"]

    asyncio.run(scene())


def test_another_version_is_refused_by_name(tmp_path, monkeypatch):
    async def scene():
        first = make_home(tmp_path, "first")
        second = make_home(tmp_path, "second", seeds=(place(first),))
        async with running(first), running(second) as b:
            member = replace(b.cluster.member, ferrule="0.0.9")
            connection = await connect(("127.0.0.1", first.settings.port), KEY, Caller(member.host, Purpose.PEER))
            await connection.send(Introduction(member, ()))
            answer = await connection.receive(SECONDS)
            connection.close()
            assert "second runs ferrule 0.0.9, first runs ferrule" in answer.reason

    asyncio.run(scene())


def test_leaving_is_heard_by_the_others(tmp_path):
    async def scene():
        first = make_home(tmp_path, "first")
        second = make_home(tmp_path, "second", seeds=(place(first),))
        async with running(first) as a:
            async with running(second) as b:
                await until(lambda: sees(a, b) and sees(b, a))
                await client.ask_here(second, Leave())
                await until(lambda: a.cluster.knowledge.gone(b.cluster.settings.host))
            assert list(a.cluster.knowledge.members) == [a.cluster.settings.host]
            assert a.cluster.peers == {}
        assert client.remembered(second).gone(second.settings.host)

    asyncio.run(scene())


def test_garbage_changes_nothing_and_gets_no_answer(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            before = agent.cluster.knowledge
            port = home.settings.port
            for words in (b"GET / HTTP/1.0\r\n\r\n", secrets.token_bytes(4096), b"", b"\0" * 65536):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(words)
                writer.write_eof()
                async with asyncio.timeout(SECONDS):
                    try:
                        assert await reader.read() == b""
                    except ConnectionResetError:
                        continue  # it left while we still spoke
                    finally:
                        writer.close()
            assert agent.cluster.knowledge == before
            with pytest.raises(ClusterError, match=r"'Dance'.*another version"):
                await client.ask_here(home, Dance())
            with pytest.raises(ClusterError, match="Expected `str`"):
                await client.ask_here(home, WriteModel(7, None))
            connection = await connect(home.socket, KEY, Caller(home.settings.host, Purpose.ASK))
            await connection.send(RankExited(0, 0, ""))
            with pytest.raises(ClusterError, match=r"closed the connection"):
                await connection.ask(GetStatus(), SECONDS)

    asyncio.run(scene())


def test_what_was_altered_on_the_cable_is_not_taken(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            place = ("127.0.0.1", home.settings.port)
            connection = await connect(place, KEY, Caller(home.settings.host, Purpose.ASK))
            encrypt = connection._tls.encrypt
            connection._tls.encrypt = lambda data: (made := encrypt(data))[:-1] + bytes([made[-1] ^ 1])
            await connection.send(WriteModel("evil", desired(home.settings.host)))
            assert await connection.receive(SECONDS) is None
            connection.close()
            assert agent.cluster.knowledge.models == {}
            for where in (place, home.socket):
                with pytest.raises(AuthError):
                    await connect(where, bytes(32), Caller(home.settings.host, Purpose.ASK))

    asyncio.run(scene())


async def start(home, **fields):
    connection = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.START))
    order = StartProcess("job-1", 0, 2, ("-c", GREET, CONTROL), {})
    await connection.ask(msgspec.structs.replace(order, **fields), SECONDS)
    connection.pause()
    await connection.send(Go())
    return await connection.detach()


def test_a_process_talks_to_the_one_that_ordered_it_and_its_end_is_told(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        (home.directory / "jobs" / "job-0").mkdir(parents=True)  # of an agent that was killed
        async with running(home) as agent:
            life = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
            begun = await life.ask(BeginJob("job-1", (0,)), SECONDS)
            port = begun.ports[0]
            assert begun.addresses == ("127.0.0.1",)
            control = await start(home, meet=(("10.0.0.1", 7), ("127.0.0.1", port)))
            reader, writer = await asyncio.open_connection(sock=control)
            writer.write(b"3\n")
            async with asyncio.timeout(SECONDS):
                heard = json.loads(await reader.readline())
            assert heard["heard"] == "3"
            assert heard["port"] == port
            assert heard["env"]["FERRULE_ADDRESS"] == f"10.0.0.1:7,127.0.0.1:{port}"
            assert heard["env"]["FERRULE_KEY"] == derived_key(KEY, "job job-1")
            assert (heard["env"]["FERRULE_RANK"], heard["env"]["FERRULE_WORLD_SIZE"]) == ("0", "2")
            end = await life.receive(SECONDS)
            assert (end.rank, end.code) == (0, 3)
            assert "last words" in end.tail
            writer.close()
            life.close()
            await until(lambda: not agent.jobs)
            assert not list((home.directory / "jobs").iterdir())

    asyncio.run(scene())


def test_a_rank_that_runs_gives_way_to_another_at_the_same_port(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            life = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
            begun = await life.ask(BeginJob("job-1", (0,)), SECONDS)
            old = await start(home, arguments=("-c", "import time; time.sleep(600)"))
            job = agent.jobs["job-1"]
            await until(lambda: bool(job.pids))
            (pid,) = job.pids
            control = await start(home)
            reader, writer = await asyncio.open_connection(sock=control)
            writer.write(b"3\n")
            async with asyncio.timeout(SECONDS):
                assert json.loads(await reader.readline())["port"] == begun.ports[0]
            end = await life.receive(SECONDS)
            assert (end.rank, end.code) == (0, 3)  # of the other one nothing is told
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            old.close()
            writer.close()
            life.close()

    asyncio.run(scene())


def test_an_error_of_our_own_is_logged_and_not_called_a_bad_request(tmp_path, monkeypatch, caplog):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            for error in (KeyError("lost"), TypeError("odd"), ValueError("wrong")):
                monkeypatch.setattr(agent.ray, "status", lambda error=error: (_ for _ in ()).throw(error))
                caplog.clear()
                with pytest.raises(ClusterError, match=r"internal error in the agent of first; see .*agent\.log there"):
                    await client.ask_here(home, GetRay())
                assert type(error).__name__ in caplog.text
                assert "Traceback" in caplog.text
            assert (await client.ask_here(home, GetStatus())).cluster == "testing"

    asyncio.run(scene())


def test_strangers_who_stay_do_not_keep_anybody_out(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home):
            port = home.settings.port
            strangers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(_MAX_STRANGERS + 4)]
            await client.ask_here(home, GetStatus())
            (await connect(("127.0.0.1", port), KEY, Caller(home.settings.host, Purpose.ASK))).close()
            for stranger in strangers:
                stranger.close()

    asyncio.run(scene())


def test_a_host_that_was_taken_out_does_not_bring_itself_back(tmp_path):
    """Also where a service manager starts its agent."""

    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            agent.cluster.write_host(home.settings.host, None)
        again = Agent(home)
        await asyncio.wait_for(again.run(lambda port, addresses: None), SECONDS)
        assert again.cluster.knowledge.gone(home.settings.host)

    asyncio.run(scene())


def test_nothing_is_started_for_a_job_that_has_ended(tmp_path):
    async def scene():
        job = Job("job-1", KEY, tmp_path / "jobs", lambda rank, code, tail: None)
        await job.end()
        order = StartProcess("job-1", 0, 1, ("-c", "pass"), {})
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(ClusterError, match="has ended"):
            job.start(order, theirs)

    asyncio.run(scene())


def test_the_end_of_a_large_log_is_read_and_no_more(tmp_path):
    log = tmp_path / "rank-0.log"
    assert tail(log) == ""
    with log.open("wb") as opened:
        opened.truncate(1 << 26)  # a hole: it takes no room
        opened.seek(0, os.SEEK_END)
        opened.write(b"\nlast words\n")
    assert tail(log).endswith("\nlast words")
    assert len(tail(log)) < 1 << 15


def test_processes_end_with_the_connection_of_their_job(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            life = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
            await life.ask(BeginJob("job-1"), SECONDS)
            with pytest.raises(ClusterError, match="no job 'job-2'"):
                await start(home, job="job-2")
            control = await start(home, arguments=("-c", "import time; time.sleep(600)"))
            await until(lambda: bool(agent.jobs["job-1"].pids))
            (pid,) = agent.jobs["job-1"].pids
            life.close()
            await until(lambda: not agent.jobs)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            control.close()

    asyncio.run(scene())
