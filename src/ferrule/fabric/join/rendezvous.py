"""The rendezvous: every rank of a job reports to rank 0, which tells all about all."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
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
    try:
        if settings.rank == 0:
            mesh, pending = _lead(settings, acceptor, listeners, coordinator, relays)
        else:
            mesh, pending = _follow(settings, acceptor, listeners, coordinator, relays)
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
    mesh.closers += [stop for transport in TRANSPORTS if (stop := transport.repair(mesh)) is not None]
    # Last: others may wait for what this rank says at the end, and it for them.
    mesh.closers.append(relays.close)
    return joined, Membership(mesh, tuple(range(mesh.size)), mesh.hosts, mesh.epoch + settings.key)


def _lead(
    settings: FabricSettings,
    acceptor: Acceptor,
    listeners: Sequence[socket.socket],
    coordinator: Coordinator,
    relays: Relays,
) -> tuple[Mesh, PendingPeers]:
    pending = PendingPeers(NO_EPOCH, 0, settings.world_size, [Role.RENDEZVOUS], strict=True)
    acceptor.open(pending)
    own = _own_host(settings)
    if not all(is_loopback(sock) for sock in listeners):
        own = _listen_everywhere(own, settings, acceptor, listeners)
    if listeners:
        own = replace(own, address=listeners[0].getsockname()[0], port=listeners[0].getsockname()[1])
    places = [Place(Role.RENDEZVOUS, rank) for rank in range(1, settings.world_size)]
    try:
        coordinator.channels = {
            place.rank: channel for place, channel in pending.take(places, coordinator.deadline).items()
        }
    except FerruleError:
        coordinator.channels = pending.arrived(Role.RENDEZVOUS)  # they must hear the reason
        raise
    acceptor.shut(pending, "this job is complete; give every process its own FERRULE_RANK")
    hosts = [own]
    for rank, report in sorted(coordinator.hear(HostReport).items()):
        hosts.append(report.host)
        _check_same("FERRULE_TRANSPORT", rank, hosts[rank].transport, settings.transport)
        _check_same("FERRULE_ALGORITHM", rank, hosts[rank].algorithm, settings.algorithm)
    epoch = secrets.token_bytes(16)
    made = _mesh(settings, hosts, epoch, acceptor, relays)
    coordinator.tell(Roster(epoch, settings.heartbeat, tuple(hosts)))
    return made


def _follow(
    settings: FabricSettings,
    acceptor: Acceptor,
    listeners: Sequence[socket.socket],
    coordinator: Coordinator,
    relays: Relays,
) -> tuple[Mesh, PendingPeers]:
    handlers = {Role.RELAY: partial(relays.serve, relays.to_leader)}
    pending = PendingPeers(NO_EPOCH, settings.rank, settings.world_size, [], handlers)
    acceptor.open(pending)
    identity = Identity(Role.RENDEZVOUS, settings.rank, 0, settings.world_size)
    leader, call = reach(
        settings.addresses, settings.key, identity, coordinator.deadline, acceptor.loop, encrypt=settings.encrypt
    )
    coordinator.channels, relays.leader = {0: leader}, call
    # Listen where rank 0 was reached: the other ranks can most likely get there.
    address = leader.here[0].partition("%")[0]
    own = _own_host(settings)
    if not ip_address(address).is_loopback:
        own = _listen_everywhere(own, settings, acceptor, listeners)
    own = replace(own, address=address, port=_port_at(address, own, acceptor, listeners))
    leader.send(HostReport(own), coordinator.deadline)
    roster = coordinator.hear(Roster)[0]
    acceptor.shut(pending, "this job is complete")
    hosts = list(roster.hosts)
    # Rank 0 may not know by which of its addresses others reach it; nor may the rank between.
    hosts[0] = replace(hosts[0], address="", port=0)
    met, there = call.via[0] if call.via else 0, leader.there
    hosts[met] = replace(hosts[met], address=there[0], port=there[1])
    settings = replace(settings, heartbeat=roster.silence)
    return _mesh(settings, hosts, roster.epoch, acceptor, relays)


def _own_host(settings: FabricSettings) -> RankHost:
    return replace(this_host(settings.transport), sockets=settings.rails or 0, algorithm=settings.algorithm)


def _check_same(variable: str, rank: int, theirs: str, ours: str) -> None:
    if theirs != ours:
        raise RendezvousError(
            f"rank {rank} was started with {variable}={theirs}, rank 0 with {ours}; give all the same"
        )


def _mesh(
    settings: FabricSettings, hosts: Sequence[RankHost], epoch: bytes, acceptor: Acceptor, relays: Relays
) -> tuple[Mesh, PendingPeers]:
    mesh = Mesh(
        settings.rank,
        tuple(hosts),
        epoch,
        settings.key,
        acceptor,
        settings.spin_us,
        settings.calibrate,
        settings.heartbeat,
        settings.encrypt,
    )
    handlers = {Role.RELAY: partial(relays.serve, mesh.onward)}
    pending = PendingPeers(epoch, settings.rank, settings.world_size, (*STREAMS, Role.CONTROL), handlers)
    acceptor.open(pending)
    return mesh, pending


def _listen_everywhere(
    own: RankHost, settings: FabricSettings, acceptor: Acceptor, listeners: Sequence[socket.socket]
) -> RankHost:
    faces, made = listen_everywhere(own_interfaces(settings.interfaces), listeners)
    acceptor.listen(made, {face.address: face.name for face in faces})
    return replace(own, interfaces=faces)


def _port_at(address: str, own: RankHost, acceptor: Acceptor, listeners: Sequence[socket.socket]) -> int:
    """The port on which this rank listens at ``address``; from now on, if it did not."""
    for face in own.interfaces:
        if face.address == address:
            return face.port
    for sock in listeners:
        here, port = sock.getsockname()[:2]
        if here in (address, "::" if ":" in address else "0.0.0.0"):
            return int(port)
    made = listen_on(address, 0)
    acceptor.listen([made])
    return int(made.getsockname()[1])
