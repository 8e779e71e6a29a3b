"""A host's agent: it knows the other hosts, tells them what this one has, starts processes for them, and keeps what the
cluster decided.

All members are alike: there is no head to lose. Tensors never pass through it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, assert_never

from ferrule.agent.device import described
from ferrule.agent.jobs import Job
from ferrule.agent.models.servers import ModelServers
from ferrule.agent.ray.node import RayNode
from ferrule.agent.report import Reporter
from ferrule.agent.standby import Kind, StandbyProcesses
from ferrule.cluster import messages
from ferrule.cluster.connection import Connection, accept
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.peers import LOST_SECONDS
from ferrule.cluster.state import ClusterState
from ferrule.config import outer_environment
from ferrule.engine.device_names import parse_device
from ferrule.engine.device_probe import probe_here
from ferrule.errors import ClusterError, FerruleError

log = logging.getLogger(__name__)

DESCRIBED_SECONDS = 20.0
"""After which a host is asked again what it is like: its free memory changes."""
_MAX_STRANGERS = 64
"""Connections that have not proved themselves yet; of more the oldest is hung up on."""
_REPORT_SECONDS = 10.0
_MAX_GRACE = 10.0
_MAX_REACH_SECONDS = 5.0
_PEER_SILENCE_SECONDS = 4 * LOST_SECONDS


class Agent:
    """Made, then `run`. All its methods are called from one event loop in the main thread."""

    def __init__(self, home: ClusterHome) -> None:
        self.home = home
        self.cluster = ClusterState(home, self._look)
        self.servers = ModelServers(home, self.cluster)
        self.ray = RayNode(home, self.cluster)
        self.jobs: dict[str, Job] = {}
        self.standby = StandbyProcesses(outer_environment)
        self.started = time.time()
        self._job_logs = home.directory / "jobs"
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._visits: set[asyncio.Task[Any]] = set()
        self._reporter = Reporter()
        self._reporting = asyncio.Lock()
        self._measuring = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._described: tuple[str, float, str] | None = None

    async def run(self, ready: Callable[[int, Sequence[str]], None]) -> None:
        """Until it is stopped. ``ready`` is called with its port and addresses when others can reach it.

        Raises `ClusterError`."""
        shutil.rmtree(self._job_logs, ignore_errors=True)  # of an agent that was killed, and its jobs with it
        servers = [await self._listen(), await self._listen_here()]
        try:
            self.cluster.start()
            self.servers.start()
            self.ray.start()
            ready(self.cluster.settings.port, self.cluster.member.addresses)
            await self.cluster.dismissed.wait()
            if self.cluster.broken is not None:  # a service manager starts it again
                raise ClusterError(f"the agent failed: {self.cluster.broken!r}; please report this with its log")
        finally:
            await self._close(servers)

    def _look(self) -> None:
        self.servers.look()
        self.ray.look()

    def stop(self) -> None:
        """Let `run` return."""
        self.cluster.dismissed.set()

    async def _listen(self) -> asyncio.Server:
        settings = self.cluster.settings
        try:
            return await asyncio.start_server(self._arrived, settings.listen or None, settings.port)
        except OSError as error:
            where = f"{settings.listen or 'all addresses'} port {settings.port}"
            raise ClusterError(
                f"the agent cannot listen on {where}: {error.strerror or error}; choose another with --port"
            ) from error

    async def _listen_here(self) -> asyncio.Server:
        path = Path(self.home.socket)
        path.unlink(missing_ok=True)  # of an agent that was killed; we hold the lock
        return await asyncio.start_unix_server(self._arrived, path)

    async def _close(self, servers: Sequence[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        await asyncio.gather(self.servers.close(), self.ray.close())
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)  # the processes of jobs end with their connections
        await self.cluster.close()
        Path(self.home.socket).unlink(missing_ok=True)

    # Who calls

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= _MAX_STRANGERS:
            # A member needs milliseconds to prove itself: so many strangers cannot keep it out.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            accepted = await accept(reader, writer, self.cluster.key)
        finally:
            self._strangers.pop(writer, None)
        if accepted is None:
            return
        connection, caller = accepted
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        try:
            await self._serve(connection, caller)
        except (FerruleError, TimeoutError, OSError) as error:
            log.info("a connection from %s ended: %s", connection.peer_address or "here", error)
        except Exception:
            log.exception("a connection from %s ended", connection.peer_address or "here")
        finally:
            self._visits.discard(visit)
            connection.close()

    async def _serve(self, connection: Connection, caller: Caller) -> None:
        match caller.purpose:
            case Purpose.PEER:
                await self._serve_peer(connection, caller)
            case Purpose.ASK:
                await self._serve_questions(connection)
            case Purpose.START:
                await self._start_process(connection)

    async def _serve_peer(self, connection: Connection, caller: Caller) -> None:
        cluster = self.cluster
        first = await connection.receive(LOST_SECONDS)
        refusal = cluster.refusal(first.member if isinstance(first, messages.Introduction) else None, caller.host)
        if not isinstance(first, messages.Introduction) or refusal is not None:
            await connection.send(messages.Refused(refusal or "it did not say who it is"))
            return
        cluster.learn(first.records)
        await connection.send(messages.Known(cluster.all_records()))
        while (message := await connection.receive(_PEER_SILENCE_SECONDS)) is not None:
            if cluster.knowledge.gone(caller.host):
                return
            match message:
                case messages.Known(records=records):
                    cluster.learn(records)
                    await connection.send(messages.Known(cluster.all_records()))
                case messages.Heartbeat(stopping=stopping):
                    if stopping:
                        cluster.heard_stopping(caller.host)
                    await connection.send(messages.HeartbeatAnswer(cluster.knowledge.digest, cluster.sees()))
                case other:
                    raise ClusterError(f"an agent said {type(other).__name__} out of turn")

    # Questions and orders

    async def _serve_questions(self, connection: Connection) -> None:
        try:
            while (message := await self._next(connection)) is not None:
                if isinstance(message, messages.BeginJob):
                    await self._serve_job(connection, message)
                    return
                if not isinstance(message, messages.PlainQuestion):
                    raise ClusterError(f"{type(message).__name__} is no question")
                await connection.send(await self._reply(self._answer(connection, message)))
        finally:
            self.standby.release(connection)

    async def _next(self, connection: Connection, timeout: float | None = None) -> messages.AnyMessage | None:
        try:
            return await connection.receive(timeout)
        except messages.UnreadableMessage as error:
            await connection.send(messages.Failure(str(error)))
            raise

    async def _reply(self, work: Awaitable[object]) -> messages.Message:
        """Answer of ``work``, or the reason why it cannot."""
        try:
            return messages.answer_with(await work)
        except FerruleError as error:
            return messages.Failure(str(error), error.code)
        except TimeoutError:
            return messages.Failure("it did not answer in time")
        except Exception:
            log.exception("a question could not be answered")
            return messages.Failure(
                f"internal error in the agent of {self.cluster.settings.name}; see {self.home.log} there"
            )

    async def _answer(self, connection: Connection, question: messages.PlainQuestion) -> object:
        match question:
            case messages.GetStatus():
                return self.cluster.status(os.getpid(), self.started)
            case messages.GetReport():
                async with self._reporting, asyncio.timeout(_REPORT_SECONDS):
                    return await asyncio.to_thread(self._reporter.report, self.ray.status())
            case messages.DescribeDevices(devices=devices, now=now):
                return await self._devices(devices, now=now)
            case messages.ProbeDevice(device=device):
                parse_device(device)
                async with self._probing:  # one process at a time, also for several models
                    return await probe_here(device)
            case messages.GetModels():
                return self.servers.status()
            case messages.GetDesiredModels():
                return self.cluster.knowledge.models
            case messages.TellModelState(name=name, state=state):
                self.servers.told(name, state)
            case messages.WriteModel(name=name, value=value):
                self.cluster.write_model(name, value)
            case messages.GetReachable(seconds=seconds):
                return await self.cluster.reachable(min(_MAX_REACH_SECONDS, seconds))
            case messages.Leave(host=host):
                await self.cluster.leave(host or self.cluster.host)
            case messages.StopAgent():
                asyncio.get_running_loop().call_later(0.05, self.stop)  # after the answer
            case messages.GetRay():
                return self.ray.status()
            case messages.WantRay(wanted=True, port=port, store=store):
                self.ray.want(port, store)
            case messages.WantRay():
                self.ray.unwant()
            case messages.KeepStandby(module=module, env=env, count=count):
                return messages.StandbyKept(*self.standby.keep(connection, Kind.of(module, env), count))
            case _:
                assert_never(question)
        return None

    async def _devices(self, names: str, *, now: bool) -> str:
        """Description of this host's devices for the planner; measured the first time, which takes seconds."""
        async with self._measuring:
            known = self._described
            if now or known is None or known[0] != names or known[1] < time.monotonic():
                known = self._described = names, time.monotonic() + DESCRIBED_SECONDS, await described(names)
            return known[2]

    # Processes for others

    async def _serve_job(self, connection: Connection, begin: messages.BeginJob) -> None:
        """The life of a job: it ends with this connection."""
        if begin.job in self.jobs:
            await connection.send(messages.Failure(f"there is a job {begin.job!r} already"))
            return
        ends: asyncio.Queue[messages.Message] = asyncio.Queue()
        job = Job(
            begin.job,
            self.cluster.key,
            self._job_logs,
            lambda rank, code, tail: ends.put_nowait(messages.RankExited(rank, code, tail)),
        )
        self.jobs[begin.job] = job

        async def tell() -> None:
            while True:
                await connection.send(await ends.get())

        telling: asyncio.Task[None] | None = None
        try:
            ports = {rank: job.reserve(rank) for rank in begin.listen}
            await connection.send(messages.answer_with(messages.JobBegun(ports, self.cluster.member.addresses)))
            telling = asyncio.create_task(tell())
            while (order := await connection.receive()) is not None:
                if isinstance(order, messages.EndJob) and order.ranks:
                    job.drop(order.ranks)
                elif isinstance(order, messages.EndJob):
                    await job.end(order.grace)
                    ends.put_nowait(messages.JobEnded())
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            await job.end(min(_MAX_GRACE, begin.grace))
            del self.jobs[begin.job]

    async def _start_process(self, connection: Connection) -> None:
        order = await self._next(connection, LOST_SECONDS)
        if not isinstance(order, messages.StartProcess):
            await connection.send(messages.Failure("that starts no process"))
            return
        job = self.jobs.get(order.job)
        if job is None:
            await connection.send(messages.Failure(f"there is no job {order.job!r}"))
            return
        await connection.send(messages.answer_with(None))
        if await connection.receive(LOST_SECONDS) is None:  # `Go`: the other end is ready for the process
            return
        connection.pause()
        fits = Kind.of_command(order.arguments, order.env)
        with await connection.detach() as control:
            standby = None if fits is None else self.standby.take(fits)
            try:
                job.start(order, control, standby)  # raises, too, where the job has ended meanwhile
            except OSError as error:
                raise ClusterError(f"rank {order.rank} of {order.job} cannot be started: {error}") from error
