import asyncio
import json
import os
import signal
from pathlib import Path

from agents import SECONDS, make_home, running, until

from ferrule.cluster import spares
from ferrule.cluster.connection import connect
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.jobs import CONTROL
from ferrule.cluster.spares import LIFELINE
from ferrule.process.lifeline import BEAT

ENV = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


async def keep(connection, count, env=ENV):
    answer = await connection.ask({"do": "spares", "module": "greeter", "env": env, "count": count}, SECONDS)
    return answer["answer"]["kept"]


async def ready(connection, count):
    async with asyncio.timeout(SECONDS):
        while True:
            question = {"do": "spares", "module": "greeter", "env": ENV, "count": count}
            answer = (await connection.ask(question, SECONDS))["answer"]
            if answer == {"kept": count, "ready": count}:
                return
            await asyncio.sleep(0.01)


async def run_rank(home, job, code, env=ENV):
    """What rank 0 of a new job said, and how it ended."""
    life = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
    begun = await life.ask({"do": "job", "job": job, "listen": [0]}, SECONDS)
    connection = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.START))
    order = {"job": job, "rank": 0, "world_size": 1, "env": env, "meet": []}
    await connection.ask({**order, "arguments": [*LIFELINE, "greeter", str(code), CONTROL]}, SECONDS)
    connection.pause()
    await connection.send({"go": True})
    reader, writer = await asyncio.open_connection(sock=await connection.detach())
    async with asyncio.timeout(SECONDS):
        lines = [line async for line in reader if line != BEAT]
    writer.close()
    end = await life.receive(SECONDS)
    life.close()
    told = json.loads(lines[0])
    assert (told["arguments"], told["rank"]) == ([str(code)], "0")
    assert told["listening"] == begun["answer"]["0"]
    assert (end["code"], "last words" in end["tail"]) == (code, True)
    return told["pid"]


def test_a_spare_becomes_the_rank_that_is_ordered_and_only_one_that_lives_and_fits(tmp_path, monkeypatch):
    async def scene():
        home = make_home(tmp_path, "first")
        async with running(home) as agent:
            front = await connect(home.socket, home.key, Caller(home.settings.host, Purpose.ASK))
            assert await keep(front, 1) == 1
            (spare,) = agent.spares.pids
            other = {**ENV, "OMP_NUM_THREADS": "3"}
            assert await run_rank(home, "job-1", 3, other) != spare
            monkeypatch.setattr(spares, "ANSWER_SECONDS", SECONDS)
            await ready(front, 1)
            assert await run_rank(home, "job-2", 4) == spare
            assert agent.spares.pids == []
            # One that imports still is ahead of a new process, too.
            monkeypatch.setattr(spares, "IMPORTING_PATIENCE", SECONDS)
            assert await keep(front, 1) == 1
            (spare,) = agent.spares.pids
            assert await run_rank(home, "job-3", 6) == spare
            # One that was stopped is found out, and the rank starts all the same.
            assert await keep(front, 1) == 1
            (spare,) = agent.spares.pids
            await ready(front, 1)
            os.kill(spare, signal.SIGSTOP)
            monkeypatch.setattr(spares, "ANSWER_SECONDS", 0.1)
            assert await run_rank(home, "job-4", 5) != spare
            await until(lambda: not exists(spare))
            # They end with whoever asked for them, and one that died is replaced when it asks again.
            assert await keep(front, 2) == 2
            os.kill(agent.spares.pids[0], signal.SIGKILL)
            await until(lambda: len(agent.spares.pids) == 1)
            assert await keep(front, 2) == 2
            last = agent.spares.pids
            front.close()
            await until(lambda: not any(map(exists, last)))

    asyncio.run(scene())


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_model_keeps_as_many_spares_as_ranks_on_each_host_also_when_an_agent_started_again(tmp_path, monkeypatch):
    from ferrule.engine.host import cluster_spares
    from ferrule.engine.host.cluster_ranks import ClusterStarter
    from ferrule.engine.host.cluster_spares import ClusterSpares
    from ferrule.engine.host.placement import Formation

    monkeypatch.setattr(cluster_spares, "RANK_MODULE", "json")

    async def scene():
        first, second = (make_home(tmp_path, name) for name in ("first", "second"))
        keeper = ClusterSpares(first)
        async with running(first) as a:
            async with running(second) as b:
                one, two = a.circle.member, b.circle.member
                both = Formation(None, ClusterStarter(first, (one, one, two), (2, 2, 4)), keeper)
                await keeper.prepare(both)
                assert (len(a.spares.pids), len(b.spares.pids), keeper.kept) == (2, 1, 3)
                ended = b.spares.pids
            await until(lambda: not any(map(exists, ended)))
            await keeper.prepare(both)  # that host is not there, which is no reason to fail
            assert (len(a.spares.pids), keeper.kept) == (2, 2)
            async with running(second) as b:
                await keeper.prepare(both)
                assert (len(b.spares.pids), keeper.kept) == (1, 3)
                alone = Formation(None, ClusterStarter(first, (one,), (2,)), keeper)
                await keeper.prepare(alone)
                assert (len(a.spares.pids), keeper.kept) == (1, 1)
                await until(lambda: b.spares.pids == [])
                await keeper.close()
                await until(lambda: a.spares.pids == [])
                keeper = ClusterSpares(first, spread=True)  # either host alone would have all three ranks
                await keeper.prepare(both)
                assert (len(a.spares.pids), len(b.spares.pids)) == (3, 3)
                await keeper.close()

    asyncio.run(scene())
