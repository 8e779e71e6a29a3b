"""The rendezvous: every rank of a job reports to rank 0, which tells all about all."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address

from ferrule.config import FabricSettings
from ferrule.errors import FerruleError, RendezvousError
from ferrule.fabric.join.acceptor import Acceptor
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.coordinator import Coordinator
from ferrule.fabric.join.dial import reach
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.hosts import RankHost, this_host
from ferrule.fabric.join.joining import join
from ferrule.fabric.join.listen import first_listeners, is_loopback, listen_everywhere, listen_on
from ferrule.fabric.join.membership import Membership
from ferrule.fabric.join.mesh import STREAMS, Mesh
from ferrule.fabric.join.messages import HostReport, Roster
from ferrule.fabric.join.new_group import NewGroup
from ferrule.fabric.join.pending import NO_EPOCH, PendingPeers, Place
from ferrule.fabric.routing.relays import Relays
from ferrule.fabric.transports.build import Joined
from ferrule.fabric.transports.table import TRANSPORTS


def rendezvous(settings: FabricSettings, deadline: Deadline) -> tuple[Joined, Membership]:
    """Meet the other ranks of the job that ``settings`` describe, and join them.

    Raises `RendezvousError` (who is missing, who came twice, whose version differs) and `AuthError`.
    """
    listeners = first_listeners(settings) if settings.world_size > 1 else []
    acceptor = Acceptor(settings.key, settings.rank, listeners, encrypt=settings.encrypt)
    coordinator = Coordinator({}, settings.rank, deadline, acceptor.loop)
    relays = Relays(settings.rank, settings.key, acceptor.handler_loop)
    meeting = _Meeting(settings, acceptor, listeners, coordinator, relays)
    try:
        mesh, pending = meeting.lead() if settings.rank == 0 else meeting.follow()
        joined = join(NewGroup(mesh, tuple(range(mesh.size)), coordinator, pending, first=True))
    except BaseException as error:
        coordinator.give_up(error)
        if isinstance(error, FerruleError):
            text = str(error)
            acceptor.turn_away(text if " gave up: " in text else f"rank {settings.rank} gave up: {text}")
        acceptor.close()
        relays.close(f"it gave up: {error}")
        raise
    coordinator.close()
    if mesh.size > 1:
        acceptor.start()
    mesh.closers += [stop for transport in TRANSPORTS if (stop := transport.repair(mesh, joined.live)) is not None]
    # Last: others may wait for what this rank says at the end, and it for them.
    mesh.closers.append(relays.close)
    return joined, Membership(mesh, tuple(range(mesh.size)), mesh.hosts, mesh.epoch + settings.key)


@dataclass(frozen=True)
class _Meeting:
    """One rank's part in the rendezvous, until all ranks know the roster. ``listeners``: the first sockets of the
    ``acceptor``."""

    settings: FabricSettings
    acceptor: Acceptor
    listeners: Sequence[socket.socket]
    coordinator: Coordinator
    relays: Relays

    def lead(self) -> tuple[Mesh, PendingPeers]:
        """Rank 0: wait for all others, and tell them the roster."""
        settings, coordinator = self.settings, self.coordinator
        pending = PendingPeers(NO_EPOCH, 0, settings.world_size, [Role.RENDEZVOUS], strict=True)
        self.acceptor.open(pending)
        own = self._own_host(everywhere=not all(is_loopback(sock) for sock in self.listeners))
        if self.listeners:
            address, port = self.listeners[0].getsockname()[:2]
            own = replace(own, address=address, port=port)
        places = [Place(Role.RENDEZVOUS, rank) for rank in range(1, settings.world_size)]
        try:
            coordinator.channels = {
                place.rank: channel for place, channel in pending.take(places, coordinator.deadline).items()
            }
        except FerruleError:
            coordinator.channels = pending.arrived(Role.RENDEZVOUS)  # they must hear the reason
            raise
        self.acceptor.shut(pending, "this job is complete; give every process its own FERRULE_RANK")
        hosts = [own]
        for rank, report in sorted(coordinator.hear(HostReport).items()):
            hosts.append(report.host)
            _check_same("FERRULE_TRANSPORT", rank, hosts[rank].transport, settings.transport)
            _check_same("FERRULE_ALGORITHM", rank, hosts[rank].algorithm, settings.algorithm)
        epoch = secrets.token_bytes(16)
        made = self._mesh(hosts, epoch, settings.heartbeat)
        coordinator.tell(Roster(epoch, settings.heartbeat, tuple(hosts)))
        return made

    def follow(self) -> tuple[Mesh, PendingPeers]:
        """Any other rank: find rank 0, report to it, and hear the roster."""
        settings, coordinator, relays = self.settings, self.coordinator, self.relays
        handlers = {Role.RELAY: partial(relays.serve, relays.to_leader)}
        pending = PendingPeers(NO_EPOCH, settings.rank, settings.world_size, [], handlers)
        self.acceptor.open(pending)
        identity = Identity(Role.RENDEZVOUS, settings.rank, 0, settings.world_size)
        leader, call = reach(
            settings.addresses,
            settings.key,
            identity,
            coordinator.deadline,
            self.acceptor.loop,
            encrypt=settings.encrypt,
        )
        coordinator.channels, relays.leader = {0: leader}, call
        # Listen where rank 0 was reached: the other ranks can most likely get there.
        address = leader.here[0].partition("%")[0]
        own = self._own_host(everywhere=not ip_address(address).is_loopback)
        own = replace(own, address=address, port=self._port_at(address, own))
        leader.send(HostReport(own), coordinator.deadline)
        roster = coordinator.hear(Roster)[0]
        self.acceptor.shut(pending, "this job is complete")
        hosts = list(roster.hosts)
        # Rank 0 may not know by which of its addresses others reach it; nor may the rank between.
        hosts[0] = replace(hosts[0], address="", port=0)
        met, there = call.via[0] if call.via else 0, leader.there
        hosts[met] = replace(hosts[met], address=there[0], port=there[1])
        return self._mesh(hosts, roster.epoch, roster.silence)

    def _own_host(self, *, everywhere: bool) -> RankHost:
        """``everywhere``: from now on this rank listens on all its interfaces."""
        settings = self.settings
        own = replace(this_host(settings.transport), sockets=settings.rails or 0, algorithm=settings.algorithm)
        if not everywhere:
            return own
        faces, made = listen_everywhere(own_interfaces(settings.interfaces), self.listeners)
        self.acceptor.listen(made, {face.address: face.name for face in faces})
        return replace(own, interfaces=faces)

    def _mesh(self, hosts: Sequence[RankHost], epoch: bytes, silence: float) -> tuple[Mesh, PendingPeers]:
        settings = self.settings
        mesh = Mesh(
            settings.rank,
            tuple(hosts),
            epoch,
            settings.key,
            self.acceptor,
            settings.spin_us,
            settings.calibrate,
            silence,
            settings.encrypt,
        )
        handlers = {Role.RELAY: partial(self.relays.serve, mesh.onward)}
        pending = PendingPeers(epoch, settings.rank, settings.world_size, (*STREAMS, Role.CONTROL), handlers)
        self.acceptor.open(pending)
        return mesh, pending

    def _port_at(self, address: str, own: RankHost) -> int:
        """The port on which this rank listens at ``address``; from now on, if it did not."""
        for face in own.interfaces:
            if face.address == address:
                return face.port
        for sock in self.listeners:
            here, port = sock.getsockname()[:2]
            if here in (address, "::" if ":" in address else "0.0.0.0"):
                return int(port)
        made = listen_on(address, 0)
        self.acceptor.listen([made])
        return int(made.getsockname()[1])


def _check_same(variable: str, rank: int, theirs: str, ours: str) -> None:
    if theirs != ours:
        raise RendezvousError(
            f"rank {rank} was started with {variable}={theirs}, rank 0 with {ours}; give all the same"
        )
