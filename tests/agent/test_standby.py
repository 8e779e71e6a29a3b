import asyncio
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import psutil

from agents import SECONDS, make_home, running, until
from ferrule.cluster.connection import connect
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.messages import CONTROL, BeginJob, Go, KeepStandby, StandbyKept, StartProcess
from ferrule.process.lifeline import BEAT, LIFELINE

ENV = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


async def keep(connection, count, env=ENV):
    return (await connection.ask(KeepStandby("greeter", env, count), SECONDS)).kept


async def ready(connection, count):
    async with asyncio.timeout(SECONDS):
        while True:
            if await connection.ask(KeepStandby("greeter", ENV, count), SECONDS) == StandbyKept(count, count):
                return
            await asyncio.sleep(0.01)


async def run_rank(home, job, code, env=ENV):
    """Output of rank 0 of a new job, and its exit status."""
    life = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
    begun = await life.ask(BeginJob(job, (0,)), SECONDS)
    connection = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.START))
    await connection.ask(StartProcess(job, 0, 1, (*LIFELINE, "greeter", str(code), CONTROL), env), SECONDS)
    connection.pause()
    await connection.send(Go())
    reader, writer = await asyncio.open_connection(sock=await connection.detach())
    async with asyncio.timeout(SECONDS):
        lines = [line async for line in reader if line != BEAT]
    writer.close()
    end = await life.receive(SECONDS)
    life.close()
    told = json.loads(lines[0])
    assert (told["arguments"], told["rank"]) == ([str(code)], "0")
    assert told["listening"] == begun.ports[0]
    assert (end.code, "last words" in end.tail) == (code, True)
    return told["pid"]


def test_a_standby_process_becomes_the_rank_that_is_ordered_only_where_it_runs_and_fits(tmp_path):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            caller = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
            assert await keep(caller, 1) == 1
            (waiting,) = agent.standby.pids
            other = {**ENV, "OMP_NUM_THREADS": "3"}
            assert await run_rank(home, "job-1", 3, other) != waiting
            await ready(caller, 1)
            assert await run_rank(home, "job-2", 4) == waiting
            assert agent.standby.pids == []
            # One that imports still is ahead of a new process, too.
            assert await keep(caller, 1) == 1
            (waiting,) = agent.standby.pids
            assert await run_rank(home, "job-3", 6) == waiting
            # One that was stopped is found out, and the rank starts all the same.
            assert await keep(caller, 1) == 1
            (waiting,) = agent.standby.pids
            await ready(caller, 1)
            os.kill(waiting, signal.SIGSTOP)
            await until(lambda: psutil.Process(waiting).status() == psutil.STATUS_STOPPED)
            assert await run_rank(home, "job-4", 5) != waiting
            await until(lambda: not exists(waiting))
            # They end with the caller's connection, and one that died is replaced when it asks again.
            assert await keep(caller, 2) == 2
            os.kill(agent.standby.pids[0], signal.SIGKILL)
            await until(lambda: len(agent.standby.pids) == 1)
            assert await keep(caller, 2) == 2
            last = agent.standby.pids
            caller.close()
            await until(lambda: not any(map(exists, last)))

    asyncio.run(scene())


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_host_keeps_as_many_standby_processes_as_ranks_also_when_an_agent_started_again(tmp_path, monkeypatch):
    from ferrule.agent.placement import standby as placement_standby
    from ferrule.agent.placement.ranks import ClusterStarter
    from ferrule.agent.placement.standby import ClusterStandby
    from ferrule.engine.host.placement import Deployment

    monkeypatch.setattr(placement_standby, "RANK_MODULE", "json")

    async def scene():
        first, second = (make_home(tmp_path, name) for name in ("first", "second"))
        holder = ClusterStandby(first)
        async with running(first) as a:
            async with running(second) as b:
                one, two = a.cluster.member, b.cluster.member
                both = Deployment(
                    SimpleNamespace(encrypt=None), ClusterStarter(first, (one, one, two), (2, 2, 4)), holder
                )
                await holder.prepare(both)
                assert (len(a.standby.pids), len(b.standby.pids), holder.kept) == (2, 1, 3)
                ended = b.standby.pids
            await until(lambda: not any(map(exists, ended)))
            await holder.prepare(both)  # that host is not there, which is no reason to fail
            assert (len(a.standby.pids), holder.kept) == (2, 2)
            async with running(second) as b:
                await holder.prepare(both)
                assert (len(b.standby.pids), holder.kept) == (1, 3)
                alone = Deployment(SimpleNamespace(encrypt=None), ClusterStarter(first, (one,), (2,)), holder)
                await holder.prepare(alone)
                assert (len(a.standby.pids), holder.kept) == (1, 1)
                await until(lambda: b.standby.pids == [])
                await holder.close()
                await until(lambda: a.standby.pids == [])
                holder = ClusterStandby(first, spread=True)  # either host alone would have all three ranks
                await holder.prepare(both)
                assert (len(a.standby.pids), len(b.standby.pids)) == (3, 3)
                await holder.close()

    asyncio.run(scene())
