"""The cluster's state as one host knows it: records on disk, connections to the other hosts."""

from __future__ import annotations

import asyncio
import logging
import math
import platform
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ferrule import __version__
from ferrule.cluster.desired import DesiredModel, DesiredRay
from ferrule.cluster.discovery import Discovery, Heard, installed
from ferrule.cluster.home import ClusterHome, HostSettings
from ferrule.cluster.peers import Peer, dial_addresses, interface_names
from ferrule.cluster.records import RAY, HostRecord, Knowledge, Member, ModelRecord, RayRecord, Record
from ferrule.cluster.reports import ClusterStatus, HostStatus, SeedStatus
from ferrule.cluster.store import Store
from ferrule.config import parse_address
from ferrule.errors import ClusterError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.installation import missing, pip_install, version_of
from ferrule.secure import Address, fingerprint

log = logging.getLogger(__name__)

INTERFACES_SECONDS = 5.0
"""Seconds between two checks whether a cable came or went."""
_MAX_HEARD = 64
_MAX_SEEDS = 256
"""Any program on the network may claim by multicast DNS to be somewhere."""
_LAST_WORD_SECONDS = 1.0


class ClusterState:
    """``on_change`` is called when a record or the state of a host has changed. Used from one event loop."""

    def __init__(self, home: ClusterHome, on_change: Callable[[], None]) -> None:
        self.name = home.name
        self.settings: HostSettings = home.settings
        self.key = home.key
        self.dismissed = asyncio.Event()
        """Set when the agent is to end: told so, or this host was taken out, or something here is broken."""
        self.broken: BaseException | None = None
        self.peers: dict[str, Peer] = {}
        self.knowledge: Knowledge
        self._store = Store(home.directory / "state.db")
        self.knowledge = self._store.load()
        self._on_change = on_change
        self._seeds: dict[Address, Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[str, Heard] = {}
        self._rivals: dict[str, str] = {}
        """Names, by id, of hosts of another cluster that is called the same."""
        self._discovery: Discovery | None = None
        self._faces: tuple[str, ...] = ()
        self._leaving = False
        self._ray = version_of("ray") or ""

    @property
    def host(self) -> str:
        """This host's id."""
        return self.settings.host

    @property
    def member(self) -> Member:
        """This host as it is now."""
        settings = self.settings
        own = settings.listen
        addresses = (own,) if own else tuple(dict.fromkeys(face.address for face in own_interfaces()))
        known = self.knowledge.members.get(settings.host)
        if not addresses and known is not None:  # every cable is out; when one is back it will lead to the same address
            addresses = known.addresses
        install = pip_install("engine") if missing("engine") else ""
        versions = __version__, platform.python_version(), self._ray, install
        return Member(settings.host, settings.name, settings.port, addresses, *versions)

    def start(self) -> None:
        if self.knowledge.gone(self.host):
            log.warning("this host was taken out of the cluster; join it again, or: ferrule leave")
            self.dismissed.set()
            return
        self._introduce_own()
        self._run("interfaces", self._watch_interfaces())
        for text in self.settings.seeds:
            self._try_seed(parse_address(text, "--address"))
        self._meet()

    async def close(self) -> None:
        ups = [peer for peer in self.peers.values() if peer.up]
        await asyncio.gather(*(peer.say_stopping(_LAST_WORD_SECONDS) for peer in ups))
        if self._discovery is not None:
            await self._discovery.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._store.close()

    # What is known

    def learn(self, records: Sequence[Record]) -> None:
        """Take in what another host knows; what is new is kept, and told to the others."""
        known, news = self.knowledge.merged(records)
        if not news:
            return
        try:
            self._store.keep(news)
        except ClusterError as error:  # the others have it; this host must not be lost because its disk is full
            log.error("what other hosts told is not kept: %s", error)
        self.knowledge = known
        self._spread(news)

    def write_host(self, name: str, value: Member | None) -> None:
        """Decide something for all. Raises `ClusterError`, and nothing is decided, where it cannot be kept."""
        self._write(HostRecord(name=name, version=0, writer=self.host, value=value))

    def write_model(self, name: str, value: DesiredModel | None) -> None:
        """As `write_host`."""
        self._write(ModelRecord(name=name, version=0, writer=self.host, value=value))

    def write_ray(self, value: DesiredRay | None) -> None:
        """As `write_host`."""
        self._write(RayRecord(name=RAY, version=0, writer=self.host, value=value))

    def all_records(self) -> tuple[Record, ...]:
        return tuple(self.knowledge.records.values())

    def _write(self, record: Record) -> None:
        self._decide(*self.knowledge.written(record))

    def _introduce_own(self) -> None:
        known, record = self.knowledge.introduced(self.member)
        if record is not None:
            self._decide(known, record)

    def _decide(self, known: Knowledge, record: Record) -> None:
        # On disk first: a version that others hear of and that is then forgotten would be given twice.
        self._store.keep([record])
        self.knowledge = known
        self._spread([record])

    def _spread(self, news: Sequence[Record]) -> None:
        if any(isinstance(record, HostRecord) for record in news):
            self._meet()
        for peer in (*self.peers.values(), *self._seeds.values()):
            peer.nudge()
        if self.knowledge.gone(self.host) and not self._leaving:
            log.warning("this host was taken out of the cluster")
            self.dismissed.set()
        self._on_change()

    # Who is there

    def is_up(self, host: str) -> bool:
        """Whether a host answers; this one does."""
        return host == self.host or (host in self.peers and self.peers[host].up)

    def silent_seconds(self, host: str) -> float:
        """Seconds in which nothing was heard of a host, not by those that are up either; since this agent began, if
        nothing ever was. For ever, where it is no host of the cluster any more."""
        if self.is_up(host):
            return 0.0
        peer = self.peers.get(host)
        if peer is None:
            return math.inf
        by_others = [other.saw.get(host, 0.0) for other in self.peers.values()]
        return time.monotonic() - max([peer.heard or peer.since, *by_others])

    def heard_stopping(self, host: str) -> None:
        """A host said that it stops on purpose."""
        if host in self.peers:
            self.peers[host].stopping = True
            self._on_change()

    def sees(self) -> tuple[str, ...]:
        """The ids of the hosts to which this one has a connection."""
        return tuple(host for host, peer in self.peers.items() if peer.up)

    async def reachable(self, seconds: float) -> tuple[str, ...]:
        """The ids of the hosts that answer right now, this one first."""
        hosts = list(self.peers)
        answers = await asyncio.gather(*(self.peers[host].answers(seconds) for host in hosts))
        return (self.host, *(host for host, answered in zip(hosts, answers, strict=True) if answered))

    async def leave(self, host: str) -> None:
        """Take a host out of the cluster. Raises `ClusterError` where there is no such host."""
        if host not in self.knowledge.members:
            raise ClusterError(f"the cluster has no host {host}")
        ups = [peer for peer in self.peers.values() if peer.up]
        self._leaving = host == self.host
        self.write_host(host, None)
        # The others should hear of it before this host is gone: what is new goes out with the second heartbeat.
        for _ in range(2):
            await asyncio.gather(*(peer.answers(_LAST_WORD_SECONDS) for peer in ups))

    def refusal(self, member: Member | None, host: str) -> str | None:
        """Reason why a host that knows the key is not let in; ``host``: its id, ``member``: what it says of itself."""
        if member is None or member.host != host:
            return "it did not say who it is"
        if member.host == self.host:
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

    def status(self, pid: int, started: float) -> ClusterStatus:
        """``pid`` and ``started``: of the agent."""
        seeds = [SeedStatus(place, peer.up, peer.refused, peer.problem) for place, peer in self._seeds.items()]
        return ClusterStatus(
            cluster=self.name,
            fingerprint=fingerprint(self.key),
            host=self.host,
            hosts=tuple(self._host_status(member) for member in self.knowledge.members.values()),
            seeds=tuple(seeds),
            mdns=self._discovery is not None,
            rivals=tuple(sorted(set(self._rivals.values()))),
            pid=pid,
            started=started,
        )

    def _host_status(self, member: Member) -> HostStatus:
        peer = self.peers.get(member.host)
        if peer is None:
            return HostStatus(**vars(member), state="here" if member.host == self.host else "lost")
        now = time.monotonic()
        return HostStatus(
            **vars(member),
            state="up" if peer.up else "stopped" if peer.stopping else "lost",
            up_seconds=now - peer.up_since if peer.up else None,
            heard_seconds=now - peer.heard if peer.heard else None,
            problem=None if peer.up else peer.problem,
            reached_at=peer.address if peer.up else None,
        )

    # Connections to others

    def _meet(self) -> None:
        """Have a connection to every member."""
        members = self.knowledge.members
        for host in members.keys() - self.peers.keys() - {self.host}:
            peer = Peer(self, partial(self._addresses_of, host), self._changed)
            self.peers[host] = peer
            self._run(f"peer {host}", peer.run())
        for host in self.peers.keys() - members.keys():
            del self.peers[host]
            self._tasks.pop(f"peer {host}").cancel()
        known = {place for host in members for place in self._addresses_of(host)}
        for place in [place for place, peer in self._seeds.items() if place in known and peer.up]:
            del self._seeds[place]  # a member by now, with a connection of its own
            self._tasks.pop(f"seed {place}").cancel()

    def _addresses_of(self, host: str) -> list[Address]:
        member = self.knowledge.members.get(host)
        found = dial_addresses(member.places, self._faces) if member is not None else []
        heard = self._heard.get(host)
        return list(dict.fromkeys([*found, *(heard.addresses if heard is not None else ())]))

    def _try_seed(self, place: Address) -> None:
        """A place where a member may be, of which nothing else is known."""
        if place in self._seeds or len(self._seeds) >= _MAX_SEEDS or place in self.member.places:
            return
        peer = Peer(self, lambda: [place], self._changed)
        self._seeds[place] = peer
        self._run(f"seed {place}", peer.run())

    def _changed(self) -> None:
        self._meet()
        self._on_change()

    def _on_heard(self, heard: Heard) -> None:
        if heard.fingerprint != fingerprint(self.key) or heard.host == self.host:
            if heard.cluster == self.name and heard.host != self.host and len(self._rivals) < _MAX_HEARD:
                self._rivals[heard.host] = heard.name
            return
        if len(self._heard) < _MAX_HEARD or heard.host in self._heard:
            self._heard[heard.host] = heard
        if heard.host not in self.knowledge.members and not self.knowledge.gone(heard.host):
            for place in heard.addresses:
                self._try_seed(place)

    def _on_gone(self, host: str) -> None:
        self._rivals.pop(host, None)

    async def _watch_interfaces(self) -> None:
        """Tell of cables that come and go, and listen on those that came; and of an engine that is installed now."""
        told: Member | None = None
        while True:
            self._faces = interface_names()
            member = self.member
            if member != told and not self.knowledge.gone(self.host):
                told = member
                self._introduce_own()
                await self._restart_discovery()
            await asyncio.sleep(INTERFACES_SECONDS)

    async def _restart_discovery(self) -> None:
        if self._discovery is not None:
            await self._discovery.close()
            self._discovery = None
        if not self.settings.mdns or not installed():
            return
        self._rivals.clear()
        discovery = Discovery(self.name, fingerprint(self.key), self._on_heard, self._on_gone)
        try:
            await discovery.start(self.member)
            self._discovery = discovery
        except (OSError, RuntimeError) as error:
            log.warning("no multicast DNS (%s): other hosts are found only by --address", error)
            await discovery.close()

    def _run(self, name: str, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[name] = task

        def ended(task: asyncio.Future[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                log.error("%s ended: %r", name, task.exception(), exc_info=task.exception())
                self.broken = task.exception()
                self.dismissed.set()  # an agent that no longer knows what happens must not go on

        task.add_done_callback(ended)
