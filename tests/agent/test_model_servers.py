import asyncio
import math
import sys
import time
from dataclasses import replace

from agents import desired, make_home, until
from ferrule.agent.control_loop import TAKE_OVER_SECONDS
from ferrule.agent.models.desired import GIVE_BACK_SECONDS, Move
from ferrule.agent.models.servers import ModelServers
from ferrule.cluster.records import Knowledge, Member, ModelRecord
from ferrule.cluster.reports import ServerState
from ferrule.cluster.state import ClusterState

A, B, C = "a" * 32, "b" * 32, "c" * 32


class FakeState:
    """The part of a `ClusterState` that `ModelServers` uses, with hosts that are as silent as a test says."""

    def __init__(self, host, wanted):
        self.host = host
        self.silent = {}
        self.knowledge = Knowledge()
        for number, each in enumerate((A, B, C)):
            member = Member(each, f"host{number}", 8421, (), "0.1.0", "3.11")
            self.knowledge, _ = self.knowledge.introduced(member)
        self.write_model("demo", wanted)

    def write_model(self, name, value):
        self.knowledge, _ = self.knowledge.written(ModelRecord(name=name, version=0, writer=self.host, value=value))

    def is_up(self, host):
        return host not in self.silent

    def silent_seconds(self, host):
        return self.silent.get(host, 0.0)

    @property
    def serves(self):
        return self.knowledge.models["demo"].host


def decide(servers):
    """Move models as is due, and do nothing else."""
    for action in servers.planned():
        if isinstance(action, Move):
            servers._do(action)


def servers_of(tmp_path, host, wanted, code="import time; time.sleep(600)"):
    cluster = FakeState(host, wanted)
    home = make_home(tmp_path, "here")
    return cluster, ModelServers(home, cluster, lambda home, name: [sys.executable, "-c", code])


def test_the_first_of_the_hosts_that_are_left_takes_over(tmp_path):
    for host, expected in ((B, B), (C, A)):
        cluster, servers = servers_of(tmp_path / host, host, desired(A))
        cluster.silent = {A: TAKE_OVER_SECONDS / 2}
        decide(servers)
        assert cluster.serves == A  # it may only be slow
        cluster.silent = {A: TAKE_OVER_SECONDS + 1}
        decide(servers)
        assert cluster.serves == expected


def test_the_owner_takes_back_what_it_still_serves(tmp_path):
    async def scene():
        cluster, servers = servers_of(tmp_path, A, desired(A))
        servers.start()
        await until(lambda: servers.status() and servers.status()[0].pid is not None)
        for state in ("ready", "recovering"):  # the latter because of the very cut that made another host take it
            servers.told("demo", ServerState(state=state))
            cluster.write_model("demo", desired(A, host=B))  # another host believed it gone
            decide(servers)
            assert cluster.serves == A
        pid = servers.status()[0].pid
        servers.look()
        await asyncio.sleep(0)
        assert servers.status()[0].pid == pid
        await servers.close()

    asyncio.run(scene())


def test_who_took_over_and_cannot_serve_gives_back(tmp_path):
    async def scene():
        cluster, servers = servers_of(tmp_path, B, desired(A, host=B), "import sys; sys.exit('no such directory')")
        cluster.silent = {A: 60.0}
        servers.start()
        await until(lambda: any(each.state == "failed" for each in servers.status()))
        assert servers.status()[0].detail == "no such directory"
        decide(servers)
        assert cluster.serves == B  # the owner is not there
        cluster.silent = {}
        long_ago = servers._servers["demo"].since - GIVE_BACK_SECONDS - 1
        servers._servers["demo"] = replace(servers._servers["demo"], since=long_ago)
        decide(servers)
        assert cluster.serves == A
        await servers.close()

    asyncio.run(scene())


def test_a_model_that_is_ordered_again_waits_for_its_old_process(tmp_path):
    """The old one has the port, and the memory."""

    async def scene():
        marks = tmp_path / "marks"
        code = (
            f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(marks)!r}, 'a').write('x')\n"
            "while True: time.sleep(600)"
        )
        cluster, servers = servers_of(tmp_path, A, desired(A), code)
        servers.start()
        await until(lambda: marks.exists() and marks.read_text() == "x")
        old = servers._processes["demo"]
        cluster.write_model("demo", None)
        servers.look()
        await until(lambda: [each.state for each in servers.status()] == ["ending"])
        cluster.write_model("demo", desired(A, port=1))
        servers.look()
        await until(lambda: servers.status()[0].wanted == desired(A, port=1))
        assert servers.status()[0].pid is None
        old.kill()
        await until(lambda: marks.read_text() == "xx")
        servers._processes["demo"].kill()
        await servers.close()

    asyncio.run(scene())


def test_what_cannot_be_started_is_told_and_tried_again(tmp_path):
    async def scene():
        _, servers = servers_of(tmp_path, A, desired(A))
        models = tmp_path / "here" / "testing" / "models"
        models.touch()  # no directory
        servers.start()
        await until(lambda: servers.status() and servers.status()[0].state == "failed")
        assert "cannot be started" in servers.status()[0].detail
        models.unlink()
        servers._servers["demo"] = replace(servers._servers["demo"], again=0.0)
        servers.look()
        await until(lambda: servers.status()[0].pid is not None)
        await servers.close()

    asyncio.run(scene())


def test_a_missing_extra_is_told_without_starting_anything(tmp_path, monkeypatch):
    async def scene():
        _, servers = servers_of(tmp_path, A, desired(A))
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        servers.start()
        await until(lambda: servers.status() and servers.status()[0].state == "failed")
        assert "a model server needs the serve extra (uvicorn is not installed)" in servers.status()[0].detail
        assert servers._processes == {}
        monkeypatch.undo()
        servers._servers["demo"] = replace(servers._servers["demo"], again=0.0)
        servers.look()
        await until(lambda: servers.status()[0].pid is not None)
        await servers.close()

    asyncio.run(scene())


def test_a_host_that_others_see_is_not_silent_and_one_that_left_is_for_ever(tmp_path):
    """Hosts in a chain have no cable to all others: they would take models from each other for ever."""

    async def scene():
        cluster = ClusterState(make_home(tmp_path, "here"), lambda: None)
        known = Knowledge()
        for host in (A, B):
            known, _ = known.introduced(Member(host, host[:1], 8421, (), "0.1.0", "3.11"))
        cluster.learn(list(known.records.values()))
        cluster.peers[A].since -= 60.0
        assert cluster.silent_seconds(A) >= 60.0
        cluster.peers[B].saw[A] = time.monotonic()
        assert cluster.silent_seconds(A) < TAKE_OVER_SECONDS
        cluster.write_host(A, None)
        assert cluster.silent_seconds(A) == math.inf
        await cluster.close()

    asyncio.run(scene())


def test_a_process_that_ends_is_started_again_and_a_model_that_is_stopped_is_not(tmp_path):
    async def scene():
        marks = tmp_path / "marks"
        code = f"open({str(marks)!r}, 'a').write('x'); import time; time.sleep(600)"
        cluster, servers = servers_of(tmp_path, A, desired(A), code)
        servers.start()
        await until(lambda: marks.exists() and marks.read_text() == "x")
        servers._processes["demo"].kill()
        await until(lambda: servers.status()[0].state == "failed")
        assert "killed by signal 9" in servers.status()[0].detail
        servers._servers["demo"] = replace(servers._servers["demo"], again=0.0)
        servers.look()
        await until(lambda: marks.read_text() == "xx")
        process = servers._processes["demo"]
        cluster.write_model("demo", None)
        servers.look()
        await until(lambda: servers.status() == ())
        await until(lambda: process.returncode is not None)
        await servers.close()

    asyncio.run(scene())
