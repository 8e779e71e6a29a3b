"""A host's agent: ``python -m ferrule.cluster.agent DIRECTORY LOCK_FD``. It knows the other hosts, tells them what this
one has, starts processes for them, and keeps what the cluster decided.

All members are alike: there is no head to lose. Tokens and tensors never pass through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ferrule import __version__
from ferrule.cluster.connection import Connection, Message, accept
from ferrule.cluster.discovery import Discovery, Heard, installed
from ferrule.cluster.handshake import Caller, Purpose
from ferrule.cluster.home import ClusterHome, HostSettings
from ferrule.cluster.jobs import Job, Order, listener_for_ranks
from ferrule.cluster.peers import LOST_SECONDS, Peer, reachable_ways
from ferrule.cluster.records import HOST, Knowledge, Member, Record
from ferrule.cluster.report import Reporter
from ferrule.cluster.store import Store
from ferrule.cluster.token import Address, fingerprint
from ferrule.config import parse_address
from ferrule.errors import ClusterError, FerruleError
from ferrule.fabric.addresses import own_interfaces

log = logging.getLogger(__name__)

INTERFACES_SECONDS = 5.0
"""How often it is looked whether a cable came or went."""
_MAX_STRANGERS = 64
"""Connections that have not proved themselves yet; more are hung up on."""
_REPORT_SECONDS = 10.0
_MAX_HEARD = 64


class Agent:
    """Made, then `run`. All its methods are called from one event loop in the main thread."""

    def __init__(self, home: ClusterHome) -> None:
        self.home = home
        self.settings: HostSettings = home.settings
        self.key = home.key
        self.store = Store(home.directory / "state.db")
        self.knowledge: Knowledge = self.store.load()
        self.peers: dict[str, Peer] = {}
        self.jobs: dict[str, Job] = {}
        self.started = time.time()
        self._seeds: dict[Address, Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[str, Heard] = {}
        self._discovery: Discovery | None = None
        self._faces: tuple[str, ...] = ()
        self._strangers = 0
        self._visits: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._leaving = False
        self._reporter = Reporter()
        self._reporting = asyncio.Lock()
        self._asked: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "status": self._status,
            "report": self._report,
            "write": self._write,
            "reachable": self._reachable,
            "leave": self._leave,
            "stop": self._halt,
        }

    # What this host is

    @property
    def member(self) -> Member:
        return Member(
            self.settings.host, self.settings.name, self.settings.port, self._addresses(), __version__,
            platform.python_version(),
        )  # fmt: skip

    def _addresses(self) -> tuple[str, ...]:
        if self.settings.listen:
            return (self.settings.listen,)
        return tuple(dict.fromkeys(face.address for face in own_interfaces()))

    async def run(self, ready: Callable[[Message], None]) -> None:
        """Until it is stopped. ``ready`` is called when others can reach it. Raises `ClusterError`."""
        servers = [await self._listen(), await self._listen_here()]
        try:
            self._introduce_own()
            self._spawn("interfaces", self._watch_interfaces())
            for text in self.settings.seeds:
                self._try_seed(parse_address(text, "--address"))
            self._meet()
            ready({"port": self.settings.port, "addresses": list(self.member.addresses)})
            await self._stop.wait()
        finally:
            await self._close(servers)

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    async def _listen(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._arrived, self.settings.listen or None, self.settings.port)
        except OSError as error:
            where = f"{self.settings.listen or 'all addresses'} port {self.settings.port}"
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
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)  # the processes of jobs end with their connections
        if self._discovery is not None:
            await self._discovery.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        Path(self.home.socket).unlink(missing_ok=True)
        self.store.close()

    # What the cluster knows

    def learn(self, records: Sequence[Record]) -> None:
        """Take in what another host knows; what is new is kept, and told to the others."""
        self.knowledge, news = self.knowledge.merged(records)
        if news:
            self.store.keep(news)
            self._told(news)

    def write(self, kind: str, name: str, value: dict[str, Any] | None) -> None:
        """Decide something for all."""
        self.knowledge, record = self.knowledge.written(kind, name, value, self.settings.host)
        self.store.keep([record])
        self._told([record])

    def _introduce_own(self) -> None:
        self.knowledge, record = self.knowledge.introduced(self.member)
        if record is not None:
            self.store.keep([record])
            self._told([record])

    def _told(self, news: Sequence[Record]) -> None:
        if any(record.kind == HOST for record in news):
            self._meet()
        for peer in (*self.peers.values(), *self._seeds.values()):
            peer.nudge()
        if self.knowledge.gone(self.settings.host) and not self._leaving:
            log.warning("this host was taken out of the cluster")
            self._stop.set()

    # Other hosts

    def _meet(self) -> None:
        """Have a way to every member."""
        members = self.knowledge.members
        for host in members.keys() - self.peers.keys() - {self.settings.host}:
            peer = Peer(self.key, lambda: self.member, self, partial(self._ways, host), self._changed)
            self.peers[host] = peer
            self._spawn(f"peer {host}", peer.run())
        for host in self.peers.keys() - members.keys():
            del self.peers[host]
            self._tasks.pop(f"peer {host}").cancel()
        known = {way for host in members for way in self._ways(host)}
        for place in [place for place, peer in self._seeds.items() if place in known and peer.up]:
            del self._seeds[place]  # a member by now, with a way of its own
            self._tasks.pop(f"seed {place}").cancel()

    def _ways(self, host: str) -> list[Address]:
        member = self.knowledge.members.get(host)
        ways = reachable_ways(member, self._faces) if member is not None else []
        heard = self._heard.get(host)
        return list(dict.fromkeys([*ways, *(heard.addresses if heard is not None else ())]))

    def _try_seed(self, place: Address) -> None:
        """A place where a member may be, of which nothing else is known."""
        if place in self._seeds or place in reachable_ways(self.member, ()):
            return
        peer = Peer(self.key, lambda: self.member, self, lambda: [place], self._changed)
        self._seeds[place] = peer
        self._spawn(f"seed {place}", peer.run())

    def _changed(self) -> None:
        self._meet()

    def _on_heard(self, heard: Heard) -> None:
        if heard.fingerprint != fingerprint(self.key) or heard.host == self.settings.host:
            return
        if len(self._heard) < _MAX_HEARD or heard.host in self._heard:
            self._heard[heard.host] = heard
        if heard.host not in self.knowledge.members and not self.knowledge.gone(heard.host):
            for place in heard.addresses:
                self._try_seed(place)

    async def _watch_interfaces(self) -> None:
        """Tell of cables that come and go, and listen on those that came."""
        while True:
            faces = own_interfaces()
            names = tuple(dict.fromkeys(face.name for face in faces))
            told = self.knowledge.members.get(self.settings.host)
            if told is None or told.addresses != self._addresses() or names != self._faces or self._discovery is None:
                self._faces = names
                if not self.knowledge.gone(self.settings.host):
                    self._introduce_own()
                await self._restart_discovery()
            await asyncio.sleep(INTERFACES_SECONDS)

    async def _restart_discovery(self) -> None:
        if self._discovery is not None:
            await self._discovery.close()
        if not self.settings.mdns or not installed():
            return
        self._discovery = Discovery(self.home.name, fingerprint(self.key), self._on_heard)
        try:
            await self._discovery.start(self.member)
        except (OSError, RuntimeError) as error:
            log.warning("no multicast DNS (%s): other hosts are found only by --address", error)
            self._discovery = None

    # Who calls

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _MAX_STRANGERS:
            writer.transport.abort()
            return
        self._strangers += 1
        try:
            accepted = await accept(reader, writer, self.key)
        finally:
            self._strangers -= 1
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
                    await connection.send(await self._answer(message))
            case Purpose.START:
                await self._start_process(connection)

    async def _serve_peer(self, connection: Connection, caller: Caller) -> None:
        first = await connection.receive(LOST_SECONDS)
        refusal = self._refusal(first or {}, caller)
        if first is None or refusal is not None:
            await connection.send({"refused": refusal or "it did not say who it is"})
            return
        self.learn([Record.from_json(each) for each in first.get("records", [])])
        await connection.send({"records": self._all()})
        while (message := await connection.receive(4 * LOST_SECONDS)) is not None:
            if self.knowledge.gone(caller.host):
                return
            if "records" in message:
                self.learn([Record.from_json(each) for each in message["records"]])
                await connection.send({"records": self._all()})
            else:
                await connection.send({"digest": self.knowledge.digest})

    def _refusal(self, first: Message, caller: Caller) -> str | None:
        """Why a host that knows the key is not let in."""
        member = Member.from_json(first["member"]) if isinstance(first.get("member"), dict) else None
        if member is None or member.host != caller.host:
            return "it did not say who it is"
        if member.host == self.settings.host:
            return "that is this host itself"
        if member.ferrule != __version__:
            return (
                f"{member.name} runs ferrule {member.ferrule}, {self.settings.name} runs ferrule {__version__}; "
                "install the same version on both"
            )
        if self.knowledge.gone(member.host):
            return f"{member.name} has left the cluster; join it again: ferrule leave, then ferrule up --join TOKEN"
        if self.knowledge.name_taken(member):
            return (
                f"there is a host {member.name!r} already; choose another name (ferrule up --host-name NAME) or, if "
                f"that one is gone for good, take it out on another host: ferrule leave --host {member.name}"
            )
        return None

    def _all(self) -> list[list[Any]]:
        return [record.to_json() for record in self.knowledge.records.values()]

    # Questions and orders

    async def _answer(self, message: Message) -> Message:
        try:
            what = self._asked.get(str(message.get("do")))
            if what is None:
                raise ClusterError(f"the agent does not know {message.get('do')!r}; is it of another version?")
            return {"answer": await what(message)}
        except FerruleError as error:
            return {"error": str(error), "code": error.code}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"that was no request: {error!r}", "code": ClusterError.code}

    async def _status(self, message: Message) -> Message:
        now = time.monotonic()
        hosts = []
        for host, member in self.knowledge.members.items():
            peer = self.peers.get(host)
            own = host == self.settings.host
            hosts.append(
                member.to_json()
                | {
                    "state": "here" if own else "up" if peer is not None and peer.up else "lost",
                    "heard_seconds": None if own or peer is None or not peer.heard else now - peer.heard,
                    "problem": None if own or peer is None or peer.up else peer.problem,
                    "way": peer.way if peer is not None and peer.up else None,
                }
            )
        return {
            "cluster": self.home.name,
            "fingerprint": fingerprint(self.key),
            "host": self.settings.host,
            "pid": os.getpid(),
            "started": self.started,
            "hosts": hosts,
            "seeds": [{"place": place, "up": peer.up, "refused": peer.refused, "problem": peer.problem}
                      for place, peer in self._seeds.items()],
            "mdns": self._discovery is not None,
        }  # fmt: skip

    async def _report(self, message: Message) -> Message:
        async with self._reporting, asyncio.timeout(_REPORT_SECONDS):
            return (await asyncio.to_thread(self._reporter.report)).to_json()

    async def _write(self, message: Message) -> Message:
        self.write(message["kind"], message["name"], message["value"])
        return {}

    async def _reachable(self, message: Message) -> Message:
        """Which members answer right now."""
        seconds = min(5.0, float(message.get("seconds", 1.0)))
        hosts = list(self.peers)
        answers = await asyncio.gather(*(self.peers[host].answers(seconds) for host in hosts))
        return {"hosts": [self.settings.host, *(host for host, yes in zip(hosts, answers, strict=True) if yes)]}

    async def _leave(self, message: Message) -> Message:
        """Take a host out of the cluster; without ``host`` this one, which then stops."""
        host = message.get("host") or self.settings.host
        if host not in self.knowledge.members:
            raise ClusterError(f"the cluster has no host {host}")
        ups = [peer for peer in self.peers.values() if peer.up]
        self._leaving = host == self.settings.host
        self.write(HOST, host, None)
        # The others should hear of it before we are gone.
        await asyncio.gather(*(peer.answers(1.0) for peer in ups))
        await asyncio.gather(*(peer.answers(1.0) for peer in ups))
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
            self.home.directory / "jobs",
            lambda rank, code, tail: exits.put_nowait({"exit": rank, "code": code, "tail": tail}),
        )
        self.jobs[name] = job

        async def tell() -> None:
            while True:
                await connection.send(await exits.get())

        telling = asyncio.create_task(tell())
        try:
            await connection.send({"answer": {}})
            while (order := await connection.receive()) is not None:
                if order.get("do") == "end":
                    await job.end(float(order.get("grace", 0.5)))
                    exits.put_nowait({"ended": True})
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await job.end(grace=0.1)
            del self.jobs[name]

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
        listener = listener_for_ranks() if order.listen else None
        try:
            port = listener.getsockname()[1] if listener is not None else None
            connection.pause()  # what comes from now on is for the process
            await connection.send({"answer": {"port": port}})
            with connection.detach() as control:
                job.start(order, control, listener)
        except OSError as error:
            raise ClusterError(f"rank {order.rank} of {order.job} cannot be started: {error}") from error
        finally:
            if listener is not None:
                listener.close()

    def _spawn(self, name: str, work: Any) -> None:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks[name] = task

        def done(ended: asyncio.Task[None]) -> None:
            if not ended.cancelled() and ended.exception() is not None:
                log.error("%s ended: %r", name, ended.exception(), exc_info=ended.exception())
                self._stop.set()

        task.add_done_callback(done)


def main(arguments: Sequence[str]) -> int:
    """Arguments: the cluster's directory, and the descriptor of its lock, or ``-`` to take it.

    Says in a line what became of it; when nobody hears that any more, it goes on.
    """
    directory = Path(arguments[0])
    home = ClusterHome(directory.name, directory.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o077)
    try:
        if arguments[1] == "-":
            home.take()
        else:
            os.set_inheritable(int(arguments[1]), False)
        asyncio.run(_run(Agent(home)))
    except (FerruleError, OSError) as error:
        log.error("%s", error)
        _say({"error": str(error), "code": getattr(error, "code", ClusterError.code)})
        return getattr(error, "exit_code", 1)
    return 0


async def _run(agent: Agent) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, agent.stop)
    await agent.run(lambda words: _say({"up": words}))


def _say(words: Message) -> None:
    with suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
