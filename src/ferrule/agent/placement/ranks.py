"""Start ranks on the hosts of a cluster, by their agents; each rank's control connection leads to the engine itself."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from ferrule.cluster.client import connect_member
from ferrule.cluster.connection import Connection
from ferrule.cluster.handshake import Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import CONTROL, BeginJob, EndJob, Go, JobEnded, RankExited, StartProcess
from ferrule.cluster.records import Member
from ferrule.engine.host.placement import Deployment, RankStarter
from ferrule.engine.host.processes import LOG_TAIL, RANK_MODULE, SENDING_MODULE, rank_environment
from ferrule.engine.options import LOAD_TIMEOUT, RankOptions
from ferrule.errors import AuthError, ClusterError, EngineError, ModelError, ModelUnavailable
from ferrule.plan import Plan
from ferrule.process.lifeline import LIFELINE

_T = TypeVar("_T")
LOOPBACK = "127.0.0.1"
START_SECONDS = 5.0
"""Time limit for an agent to begin a job, or to start a process."""
EXIT_SECONDS = 0.5
"""In which the end of a rank that is gone should be known."""
_STOP_SECONDS = 1.0
"""Beyond the grace: the agent of a host that does not answer ends its ranks itself, as soon as it finds that the
connection is gone."""


class FileSource:
    """Host that has a model's files. Where no rank is on it, it sends them to the ranks' hosts, unless these have them;
    what they need is kept there."""

    def __init__(self, home: ClusterHome, member: Member) -> None:
        self._home, self._member = home, member
        self._done: set[tuple[tuple[str, ...], Plan]] = set()

    async def send(self, members: Sequence[Member], options: RankOptions) -> None:
        """To the hosts of the ranks. Raises `EngineError`, `TimeoutError`, and what `ClusterRanks.start` does."""
        hosts = tuple(member.host for member in members)
        if self._member.host in hosts or (hosts, options.plan) in self._done:
            return
        processes = ClusterRanks(self._home, (*members, self._member), SENDING_MODULE)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT):
                await processes.start(options, (1,) * (len(members) + 1))
                await processes.finished()
        finally:
            await processes.stop(0)
        self._done.add((hosts, options.plan))


@dataclass(frozen=True, eq=False)
class ClusterStarter:
    """`RankStarter`: rank r on ``members[r]`` with ``threads[r]`` threads. Equal ones start the same ranks on the same
    hosts, whatever addresses these have by now. ``source``: has the model's files."""

    home: ClusterHome
    members: tuple[Member, ...]
    threads: tuple[int, ...]
    source: FileSource | None = None

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """For each rank its host, by id, and its threads."""
        return tuple((member.host, threads) for member, threads in zip(self.members, self.threads, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterStarter) and self.places == other.places

    def __hash__(self) -> int:
        return hash(self.places)

    def moved(self, other: RankStarter) -> tuple[int, ...] | None:
        """See `RankStarter.moved`. Rank 0 cannot move: the others find it where it is."""
        if not isinstance(other, ClusterStarter) or len(other.members) != len(self.members):
            return None
        found = _elsewhere(self.members, other.members)
        return None if 0 in found else found

    async def start(self, options: RankOptions) -> ClusterRanks:
        ranks = ClusterRanks(self.home, self.members)
        try:
            with _unavailable():
                if self.source is not None:
                    await self.source.send(self.members, options)
                await ranks.start(options, self.threads)
        except BaseException:
            await ranks.stop(0)
            raise
        return ranks


class ClusterRanks:
    """`StartedRanks` on hosts of a cluster. On each host they live as long as its connection of this job. ``module``:
    that each process runs."""

    def __init__(self, home: ClusterHome, members: Sequence[Member], module: str = RANK_MODULE) -> None:
        self._module = module
        self._news = asyncio.Event()
        self.hosts = [member.name for member in members]
        self.sockets: list[socket.socket] = []
        self._home, self._members = home, members
        self._codes: list[int | None] = [None] * len(members)
        self._tails = [""] * len(members)
        self._job = f"ranks-{secrets.token_hex(6)}"
        self._threads: Sequence[int] = ()
        self._ports: dict[str, int] = {}
        self._addresses: dict[str, Sequence[str]] = {}
        self._lives: dict[str, Connection] = {}
        self._listening: list[asyncio.Task[None]] = []
        self._ended: dict[str, asyncio.Event] = {}

    async def start(self, options: RankOptions, threads: Sequence[int]) -> None:
        """`stop` has to be called also where this raises."""
        self._threads = threads
        members = {member.host: member for member in self._members}
        await _all_or_none(self._begin(member) for member in members.values())
        self.sockets = await _all_or_none(self._start_rank(rank, options) for rank in range(len(self._members)))

    def poll(self) -> Sequence[int | None]:
        return list(self._codes)

    def log_tail(self, rank: int) -> str:
        return self._tails[rank]

    async def finished(self) -> None:
        """Wait until all have ended by themselves. Raises `EngineError` where one failed for good, such as for the room
        on its disk, `ModelUnavailable` where a host is lost."""
        while None in self._codes and not any(self._codes):
            self._news.clear()
            gone = next((host for host, ended in self._ended.items() if ended.is_set()), None)
            if gone is not None:
                name = next(member.name for member in self._members if member.host == gone)
                raise ModelUnavailable(f"{name} was lost while the model's files were sent to hosts")
            await self._news.wait()
        failed = next((rank for rank, code in enumerate(self._codes) if code), None)
        if failed is not None:
            why = self._tails[failed] or f"a process ended with status {self._codes[failed]}"
            final = self._codes[failed] in (ModelError.exit_code, EngineError.exit_code)
            text = (
                f"the model's files could not be sent to the hosts of its ranks ({self._members[failed].name}: {why})"
            )
            raise EngineError(text) if final else ModelUnavailable(text)

    async def replace(self, ranks: Sequence[int], deployment: Deployment) -> Sequence[socket.socket]:
        """See `StartedRanks.replace`."""
        assert isinstance(deployment.starter, ClusterStarter)
        members, self._threads = deployment.starter.members, deployment.starter.threads
        moved = _elsewhere(self._members, members)
        if not set(moved) <= set(ranks):
            raise ModelUnavailable("ranks that are left would have to move")
        self._members, self.hosts = members, [member.name for member in members]
        for host in self._lives.keys() - {member.host for member in members}:
            self._lives.pop(host).close()
        with suppress(TimeoutError):  # one that is stopped does not end before its agent has an order for another
            async with asyncio.timeout(EXIT_SECONDS):
                while any(self._codes[rank] is None for rank in ranks if rank not in moved):
                    self._news.clear()
                    await self._news.wait()
        for rank in ranks:
            self._codes[rank], self._tails[rank] = None, ""
        with _unavailable():
            if moved and deployment.starter.source is not None:
                await deployment.starter.source.send(members, deployment.options)
            new = {members[rank].host: members[rank] for rank in moved if members[rank].host not in self._lives}
            await _all_or_none(self._begin(member) for member in new.values())
            made = await _all_or_none(self._start_rank(rank, deployment.options) for rank in ranks)
        for rank, ours in zip(ranks, made, strict=True):
            self.sockets[rank] = ours
        return made

    async def end(self, ranks: Sequence[int]) -> None:
        """See `StartedRanks.end`."""
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                for host in {self._members[rank].host for rank in ranks}:
                    here = tuple(rank for rank in ranks if self._members[rank].host == host)
                    await self._lives[host].send(EndJob(0.0, here))

    def options_of(self, rank: int, options: RankOptions) -> RankOptions:
        """See `StartedRanks.options_of`."""
        return replace(options, threads=self._threads[rank])

    async def stop(self, grace: float) -> None:
        await asyncio.gather(*(self._end(host, life, grace) for host, life in list(self._lives.items())))
        self._lives.clear()
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)

    def _meet(self) -> tuple[tuple[str, int], ...]:
        """Where ranks find each other: rank 0's host first; the others know how to reach it. On a host of its own no
        cable need be plugged in."""
        members = {member.host: member for member in self._members}
        if len(members) == 1:
            return ((LOOPBACK, self._ports[self._members[0].host]),)
        found = {host: [*self._addresses[host], *member.addresses] for host, member in members.items()}
        return tuple((address, self._ports[host]) for host, each in found.items() for address in dict.fromkeys(each))

    async def _begin(self, member: Member) -> None:
        """Begin the job on one host, and note the port on which its first rank will listen, and the addresses that it
        has now: its record may be some seconds older than its last cable."""
        life = await connect_member(self._home, member, Purpose.ASK)
        self._lives[member.host] = life
        self._ended[member.host] = asyncio.Event()
        first = next(rank for rank, other in enumerate(self._members) if other.host == member.host)
        begun = await life.ask(BeginJob(self._job, (first,)), START_SECONDS)
        self._listening.append(asyncio.create_task(self._listen(member.host, life), name=f"job on {member.name}"))
        self._ports[member.host] = begun.ports[first]
        self._addresses[member.host] = begun.addresses

    async def _listen(self, host: str, life: Connection) -> None:
        """Note how ranks end."""
        with suppress(AuthError, ClusterError, OSError):
            while (told := await life.receive()) is not None:
                if isinstance(told, RankExited):
                    self._codes[told.rank] = told.code
                    self._tails[told.rank] = " | ".join(told.tail.splitlines()[-LOG_TAIL:])
                elif isinstance(told, JobEnded):
                    break
                self._news.set()
        self._ended[host].set()
        self._news.set()

    async def _start_rank(self, rank: int, options: RankOptions) -> socket.socket:
        options = self.options_of(rank, options)
        connection = await connect_member(self._home, self._members[rank], Purpose.START)
        order = StartProcess(
            self._job,
            rank,
            len(self._members),
            (*LIFELINE, self._module, options.to_json(), CONTROL),
            rank_environment(options.threads, options.encrypt),
            self._meet(),
        )
        try:
            await connection.ask(order, START_SECONDS)
            connection.pause()  # what the rank says is read by the engine
            await connection.send(Go())
            return await connection.detach()
        finally:
            connection.close()

    async def _end(self, host: str, life: Connection, grace: float) -> None:
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(grace + _STOP_SECONDS):
                await life.send(EndJob(grace))
                await self._ended[host].wait()
        life.close()


def _elsewhere(members: Sequence[Member], others: Sequence[Member]) -> tuple[int, ...]:
    """The ranks that ``others`` have on other hosts than these ``members``."""
    pairs = zip(members, others, strict=True)
    return tuple(rank for rank, (one, other) in enumerate(pairs) if one.host != other.host)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Raises `ModelUnavailable` where a host cannot be asked for a rank."""
    try:
        yield
    except (ClusterError, AuthError, OSError, TimeoutError) as error:
        raise ModelUnavailable(f"ranks could not be started: {error or 'a host did not answer in time'}") from error


async def _all_or_none(works: Iterable[Awaitable[_T]]) -> list[_T]:
    """Results of all of them; where one fails none goes on, and sockets of the others are closed."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(made, socket.socket):
                made.close()
        raise
