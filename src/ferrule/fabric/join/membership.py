"""Members of a group, and the split of a group into smaller ones."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ferrule.config import TransportChoice
from ferrule.errors import PeerLost
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.coordinator import Coordinator
from ferrule.fabric.join.dial import dial
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.joining import join
from ferrule.fabric.join.mesh import STREAMS, Mesh
from ferrule.fabric.join.new_group import NewGroup
from ferrule.fabric.join.pending import PendingPeers, Place
from ferrule.fabric.transports.build import Joined

_CHOICE = struct.Struct("<? q q")  # takes part, color, key


@dataclass(frozen=True)
class Lineage:
    """Members that made the first of a line of groups that were made anew, each from survivors of the one before.

    ``members``: the mesh's ranks. ``key``: the secret from which the epochs of the line follow.
    """

    members: tuple[int, ...]
    key: bytes


@dataclass(frozen=True)
class Membership:
    """``mesh``: what the groups of the job share. ``members``: the mesh's rank of each rank of this group.

    ``epoch_key``: the secret from which the epochs of smaller groups follow. ``lineage``: of a group that is not the
    first of its line.
    """

    mesh: Mesh
    members: tuple[int, ...]
    hosts: tuple[RankHost, ...]
    epoch_key: bytes
    lineage: Lineage | None = None

    @property
    def root(self) -> Lineage:
        return self.lineage or Lineage(self.members, self.epoch_key)


def split_group(
    membership: Membership,
    number: int,
    exchange: Callable[[bytes], bytes],
    color: int | None,
    key: int,
    transport: TransportChoice | None,
    deadline: Deadline,
) -> tuple[Joined, Membership] | None:
    """`Group.split`. ``number`` counts this group's splits; ``exchange`` gathers equally long bytes of all ranks."""
    rows = exchange(_CHOICE.pack(color is not None, color or 0, key))
    chosen = []
    for rank in range(len(membership.members)):
        takes_part, its_color, its_key = _CHOICE.unpack_from(rows, rank * _CHOICE.size)
        if takes_part and its_color == color:
            chosen.append((its_key, rank))
    if color is None:
        return None
    members = tuple(membership.members[rank] for _, rank in sorted(chosen))
    deadline = deadline.watched(lambda: check_alive(membership.mesh, members))
    return _join(membership.mesh, members, _epoch(membership, number, color), transport, deadline)


def _join(
    mesh: Mesh, members: tuple[int, ...], epoch_key: bytes, transport: TransportChoice | None, deadline: Deadline
) -> tuple[Joined, Membership]:
    rank, size, epoch = members.index(mesh.rank), len(members), epoch_key[:16]
    pending = PendingPeers(epoch, rank, size, (Role.RENDEZVOUS, *STREAMS))
    mesh.acceptor.open(pending)
    coordinator = Coordinator({}, rank, deadline)
    with making(mesh, pending, coordinator):
        if rank == 0:
            places = [Place(Role.RENDEZVOUS, other) for other in range(1, size)]
            coordinator.channels = {place.rank: channel for place, channel in pending.take(places, deadline).items()}
        else:
            identity = Identity(Role.RENDEZVOUS, rank, 0, size, epoch)
            (leader,) = dial(mesh.calls(members[0], [identity]), mesh.key, deadline)
            if not isinstance(leader, ControlChannel):
                raise leader
            coordinator.channels = {0: leader}
        new = NewGroup(mesh, members, coordinator, pending, transport)
        joined = join(new)
    return joined, Membership(mesh, members, new.hosts, epoch_key)


@contextmanager
def making(mesh: Mesh, pending: PendingPeers, coordinator: Coordinator) -> Iterator[None]:
    """A group is made inside: what goes wrong there is told to the other ranks, and later connections are refused."""
    try:
        yield
    except BaseException as error:
        coordinator.give_up(error)
        mesh.acceptor.shut(pending, "this group was given up")
        raise
    coordinator.close()


def check_alive(mesh: Mesh, members: Sequence[int]) -> None:
    """Raises `PeerLost` if one of ``members`` is lost, so that nothing waits for it."""
    lost = mesh.lost(members)
    if lost is not None:
        rank, reason = lost
        host = mesh.hosts[members[rank]]
        text = f"rank {rank} on {host.host} (pid {host.pid}) {reason}"
        raise PeerLost(text, rank=rank, host=host.host, path="", seconds=0.0)


def _epoch(membership: Membership, number: int, color: int) -> bytes:
    """Every member can work it out alone, and no two groups have the same."""
    text = struct.pack("<Q q", number, color)
    return hmac.digest(membership.epoch_key, b"ferrule split\0" + text, "sha256")
