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
from typing import Any

from ferrule.agent.device import described
from ferrule.agent.jobs import Job, Order, base_environment
from ferrule.agent.models.servers import ModelServers
from ferrule.agent.ray.node import RayNode
from ferrule.agent.report import Reporter
from ferrule.agent.standby import Kind, StandbyProcesses
from ferrule.cluster.connection import Connection, Message, accept
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.peers import LOST_SECONDS
from ferrule.cluster.records import MODEL, Record
from ferrule.cluster.state import ClusterState
from ferrule.errors import ClusterError, FerruleError

log = logging.getLogger(__name__)

DESCRIBED_SECONDS = 20.0
"""After which a host is asked again what it is like: its free memory changes."""
_MAX_STRANGERS = 64
"""Connections that have not proved themselves yet; of more the oldest is hung up on."""
_REPORT_SECONDS = 10.0
_MAX_GRACE = 10.0
_PEER_SILENCE_SECONDS = 4 * LOST_SECONDS


class Agent:
    """Made, then `run`. All its methods are called from one event loop in the main thread."""

    def __init__(self, home: ClusterHome) -> None:
        self.home = home
        self.cluster = ClusterState(home, self._look)
        self.servers = ModelServers(home, self.cluster)
        self.ray = RayNode(home, self.cluster)
        self.jobs: dict[str, Job] = {}
        self.standby = StandbyProcesses(base_environment)
        self.started = time.time()
        self._job_logs = home.directory / "jobs"
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._visits: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._reporter = Reporter()
        self._reporting = asyncio.Lock()
        self._measuring = asyncio.Lock()
        self._described: tuple[float, str] | None = None
        self._asked: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "status": self._status,
            "report": self._report,
            "device": self._device,
            "models": self._models,
            "wanted": self._wanted,
            "model_state": self._model_state,
            "write": self._write,
            "reachable": self._reachable,
            "leave": self._leave,
            "stop": self._halt,
            "ray": self._ray,
            "want_ray": self._want_ray,
        }

    async def run(self, ready: Callable[[Message], None]) -> None:
        """Until it is stopped. ``ready`` is called when others can reach it. Raises `ClusterError`."""
        shutil.rmtree(self._job_logs, ignore_errors=True)  # of an agent that was killed, and its jobs with it
        servers = [await self._listen(), await self._listen_here()]
        waits: list[asyncio.Task[Any]] = []
        try:
            self.cluster.start()
            self.servers.start()
            self.ray.start()
            ready({"port": self.cluster.settings.port, "addresses": list(self.cluster.member.addresses)})
            waits = [asyncio.create_task(event.wait()) for event in (self._stop, self.cluster.dismissed)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self.cluster.broken is not None:  # a service manager starts it again
                raise ClusterError(f"the agent failed: {self.cluster.broken!r}; please report this with its log")
        finally:
            for wait in waits:
                wait.cancel()
            await self._close(servers)

    def _look(self) -> None:
        self.servers.look()
        self.ray.look()

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

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
            # Who belongs here needs milliseconds: so many who do not cannot keep it out.
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
                while (message := await connection.receive()) is not None:
                    if message.get("do") == "job":
                        await self._serve_job(connection, message)
                        return
                    if message.get("do") == "spares":
                        await self._serve_spares(connection, message)
                        return
                    await connection.send(await self._answer(message))
            case Purpose.START:
                await self._start_process(connection)

    async def _serve_peer(self, connection: Connection, caller: Caller) -> None:
        cluster = self.cluster
        first = await connection.receive(LOST_SECONDS)
        refusal = cluster.refusal(first or {}, caller.host)
        if first is None or refusal is not None:
            await connection.send({"refused": refusal})
            return
        cluster.learn([Record.from_json(each) for each in first.get("records", [])])
        await connection.send({"records": cluster.all_records()})
        while (message := await connection.receive(_PEER_SILENCE_SECONDS)) is not None:
            if cluster.knowledge.gone(caller.host):
                return
            if "records" in message:
                cluster.learn([Record.from_json(each) for each in message["records"]])
                await connection.send({"records": cluster.all_records()})
            else:
                await connection.send({"digest": cluster.knowledge.digest, "sees": cluster.sees()})

    # Questions and orders

    async def _answer(self, message: Message, what: Callable[[Message], Awaitable[Any]] | None = None) -> Message:
        """``what``: how, if not by what is asked."""
        try:
            what = what or self._asked.get(str(message.get("do")))
            if what is None:
                raise ClusterError(f"the agent does not know {message.get('do')!r}; is it of another version?")
            return {"answer": await what(message)}
        except FerruleError as error:
            return {"error": str(error), "code": error.code}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"that was no request: {error!r}", "code": ClusterError.code}

    async def _status(self, message: Message) -> Message:
        return self.cluster.status() | {"pid": os.getpid(), "started": self.started}

    async def _report(self, message: Message) -> Message:
        async with self._reporting, asyncio.timeout(_REPORT_SECONDS):
            return (await asyncio.to_thread(self._reporter.report)).to_json() | {"ray": self.ray.status()}

    async def _device(self, message: Message) -> Message:
        """What the planner has to know of this host; the first time it is measured, which takes seconds."""
        async with self._measuring:
            if self._described is None or time.monotonic() - self._described[0] > DESCRIBED_SECONDS:
                self._described = time.monotonic(), await described()
            return {"text": self._described[1]}

    async def _models(self, message: Message) -> list[Message]:
        return self.servers.status()

    async def _wanted(self, message: Message) -> Message:
        """The records of the models that should be up, on whatever host."""
        return {name: dict(value) for name, value in self.cluster.knowledge.present(MODEL).items()}

    async def _model_state(self, message: Message) -> Message:
        self.servers.told(str(message["name"]), message["state"])
        return {}

    async def _write(self, message: Message) -> Message:
        self.cluster.write(message["kind"], message["name"], message["value"])
        return {}

    async def _ray(self, message: Message) -> Message:
        return self.ray.status()

    async def _want_ray(self, message: Message) -> Message:
        if message["wanted"]:
            self.ray.want(message.get("port"), message.get("store"))
        else:
            self.ray.unwant()
        return {}

    async def _reachable(self, message: Message) -> Message:
        return {"hosts": await self.cluster.reachable(min(5.0, float(message.get("seconds", 1.0))))}

    async def _leave(self, message: Message) -> Message:
        await self.cluster.leave(message.get("host") or self.cluster.host)
        return {}

    async def _halt(self, message: Message) -> Message:
        asyncio.get_running_loop().call_later(0.05, self._stop.set)  # after the answer
        return {}

    # Processes for others

    async def _serve_job(self, connection: Connection, message: Message) -> None:
        """The life of a job: it ends with this connection."""
        name = str(message["job"])
        if name in self.jobs:
            await connection.send({"error": f"there is a job {name!r} already", "code": ClusterError.code})
            return
        exits: asyncio.Queue[Message] = asyncio.Queue()
        job = Job(
            name,
            self.cluster.key,
            self._job_logs,
            lambda rank, code, tail: exits.put_nowait({"exit": rank, "code": code, "tail": tail}),
        )
        self.jobs[name] = job

        async def tell() -> None:
            while True:
                await connection.send(await exits.get())

        telling: asyncio.Task[None] | None = None
        try:
            ports = {str(rank): job.reserve(int(rank)) for rank in message.get("listen", [])}
            await connection.send({"answer": ports, "addresses": list(self.cluster.member.addresses)})
            telling = asyncio.create_task(tell())
            while (order := await connection.receive()) is not None:
                if order.get("do") == "end":
                    await job.end(float(order.get("grace", 0.5)))
                    exits.put_nowait({"ended": True})
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            await job.end(min(_MAX_GRACE, float(message.get("grace", 0.1))))
            del self.jobs[name]

    async def _serve_spares(self, connection: Connection, first: Message) -> None:
        """Keep processes ready as long as this connection lives; it may ask again."""

        async def keep(message: Message) -> Message:
            kind = Kind.of(str(message["module"]), {str(name): str(value) for name, value in message["env"].items()})
            kept, ready = self.standby.keep(connection, kind, int(message["count"]))
            return {"kept": kept, "ready": ready}

        message: Message | None = first
        try:
            while message is not None:
                await connection.send(await self._answer(message, keep))
                message = await connection.receive()
        finally:
            self.standby.release(connection)

    async def _start_process(self, connection: Connection) -> None:
        message = await connection.receive(LOST_SECONDS)
        try:
            order = Order.from_json(message or {})
            job = self.jobs.get(order.job)
            if job is None:
                raise ClusterError(f"there is no job {order.job!r}")
        except ClusterError as error:
            await connection.send({"error": str(error), "code": error.code})
            return
        await connection.send({"answer": {}})
        if await connection.receive(LOST_SECONDS) is None:  # the word that the other end is ready for the process
            return
        connection.pause()
        fits = Kind.of_command(order.arguments, order.env)
        with await connection.detach() as control:
            spare = None if fits is None else await self.standby.take(fits[0])
            try:
                job.start(order, control, spare)  # raises, too, where the job has ended meanwhile
            except OSError as error:
                raise ClusterError(f"rank {order.rank} of {order.job} cannot be started: {error}") from error
