"""A new group of those that are left, in the same processes.

The lowest rank that is left leads. All others connect to it; once all are there, it names the members and a random
number, from which the new group's epoch follows, and they join as for a split. A rank that is lost meanwhile is
left out in another attempt; if that was the leader, the next one leads.

A group that was made so is made anew from the same `Lineage`: a rank that still tries to make the first one, and a
rank on which that was finished and lost a rank at once, look for each other in the same place.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from ferrule.errors import FabricError, FabricTimeout, FerruleError, PeerLost, RendezvousError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.coordinator import Coordinator
from ferrule.fabric.join.dial import dial
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.joining import join
from ferrule.fabric.join.membership import Membership, check_alive, making
from ferrule.fabric.join.mesh import STREAMS, Mesh
from ferrule.fabric.join.messages import ReformAnswer
from ferrule.fabric.join.new_group import NewGroup
from ferrule.fabric.join.pending import PendingPeers
from ferrule.fabric.transports.build import Joined

_PAUSE_SECONDS = 0.05
_MOST_IN_VAIN = 3
_VERDICT_SECONDS = 2.0
"""Time limit for the heartbeat to say which rank was lost, when all that is known is that a connection ended."""


def reform_group(membership: Membership, deadline: Deadline) -> tuple[Joined, Membership]:
    """Make a group of the ranks of ``membership`` that are neither lost nor gone.

    Raises `FabricTimeout` (a rank is there and does not take part) and `FabricError` (this rank was given up).
    """
    gathering = _Gathering(membership, deadline)
    try:
        while True:
            made = gathering.attempt()
            if made is not None:
                return made
            time.sleep(_PAUSE_SECONDS)
    finally:
        gathering.close()


class _Gathering:
    """Ranks are those of the lineage."""

    def __init__(self, membership: Membership, deadline: Deadline) -> None:
        self._membership = membership
        self._mesh: Mesh = membership.mesh
        self._lineage = membership.root
        self._rank = self._lineage.members.index(self._mesh.rank)
        self._deadline = deadline
        self._changed = threading.Condition()
        self._here: dict[int, ControlChannel] = {}
        self._problem = ""
        self._in_vain = 0
        epoch = hmac.digest(self._lineage.key, b"ferrule reform\0", "sha256")[:16]
        self._pending = PendingPeers(epoch, self._rank, len(self._lineage.members), ())
        self._pending.handle(Role.REFORM, self._arrived)
        self._mesh.acceptor.open(self._pending)

    def close(self) -> None:
        self._mesh.acceptor.shut(self._pending, "no new group is being made here")
        with self._changed:
            for channel in self._here.values():
                channel.socket.close()

    def attempt(self) -> tuple[Joined, Membership] | None:
        """One try with the ranks that are left now; None: it did not work out, another may."""
        if self._deadline.passed:
            raise FabricTimeout(f"no new group within {self._deadline.seconds:g} s; {self._problem}")
        leader = min(self._survivors())
        try:
            members, number, channels = self._lead() if leader == self._rank else self._follow(leader)
        except (PeerLost, RendezvousError, OSError) as error:
            self._problem = str(error)
            return None
        return self._join(members, number, channels)

    def _survivors(self) -> list[int]:
        """The ranks that are neither lost nor gone."""
        mesh = self._mesh
        if mesh.heartbeat is None:
            return [self._rank]
        presences = mesh.heartbeat.peers()
        if presences[mesh.rank][0] == "lost":
            raise FabricError(f"this rank cannot come back: the others gave it up ({mesh.heartbeat.lost()[mesh.rank]})")
        return [rank for rank, member in enumerate(self._lineage.members) if presences[member][0] in ("self", "alive")]

    def _arrived(self, channel: ControlChannel) -> None:
        with self._changed:
            old = self._here.pop(channel.peer, None)
            if old is not None:
                old.socket.close()
            self._here[channel.peer] = channel
            self._changed.notify_all()

    def _lead(self) -> tuple[list[int], bytes, dict[int, ControlChannel]]:
        """Wait for all ranks that are left."""
        with self._changed:
            while True:
                members = self._survivors()
                self._turn_away(members)
                absent = [rank for rank in members if rank != self._rank and rank not in self._here]
                if not absent:
                    break
                if self._deadline.passed:
                    self._fail(absent)
                self._changed.wait(_PAUSE_SECONDS)
            channels = {members.index(rank): self._here.pop(rank) for rank in members if rank != self._rank}
        return members, secrets.token_bytes(16), channels

    def _turn_away(self, members: Sequence[int]) -> None:
        """Tell ranks that were given up, and came back, that it is too late."""
        for rank in [rank for rank in self._here if rank not in members]:
            self._refuse(rank, FabricError(f"rank {rank} cannot come back: the others gave it up"))

    def _fail(self, absent: Sequence[int]) -> None:
        names = ", ".join(str(rank) for rank in absent)
        text = f"rank {names} did not call reform() within {self._deadline.seconds:g} s, and is not lost"
        for rank in list(self._here):
            self._refuse(rank, FabricTimeout(text))
        raise FabricTimeout(text)

    def _refuse(self, rank: int, error: FabricError) -> None:
        channel = self._here.pop(rank)
        with contextlib.suppress(RendezvousError):
            channel.send(
                ReformAnswer(refusal=str(error), late=isinstance(error, FabricTimeout)), Deadline(_VERDICT_SECONDS)
            )
        channel.socket.close()

    def _follow(self, leader: int) -> tuple[list[int], bytes, dict[int, ControlChannel]]:
        """Connect to the leader and hear who takes part."""
        member = self._lineage.members[leader]
        deadline = self._deadline.extended(_VERDICT_SECONDS)  # the leader gives up first, and says why
        deadline = deadline.watched(lambda: check_alive(self._mesh, [member]))
        identity = Identity(Role.REFORM, self._rank, leader, len(self._lineage.members), self._pending.epoch)
        (channel,) = dial(self._mesh.calls(member, [identity]), self._mesh.key, deadline)
        if not isinstance(channel, ControlChannel):
            raise channel
        try:
            answer = channel.receive(ReformAnswer, deadline)
            if answer.refusal:
                raise (FabricTimeout if answer.late else FabricError)(answer.refusal)
        except BaseException:
            channel.socket.close()
            raise
        return list(answer.members), answer.number, {0: channel}

    def _join(
        self, members: Sequence[int], number: bytes, channels: Mapping[int, ControlChannel]
    ) -> tuple[Joined, Membership] | None:
        mesh, rank = self._mesh, members.index(self._rank)
        new_members = tuple(self._lineage.members[old] for old in members)
        key = hmac.digest(self._lineage.key, b"ferrule reformed\0" + number, "sha256")
        deadline = self._deadline.watched(lambda: check_alive(mesh, new_members))
        pending = PendingPeers(key[:16], rank, len(members), STREAMS)
        mesh.acceptor.open(pending)
        coordinator = Coordinator(channels, rank, deadline)
        try:
            with making(mesh, pending, coordinator):
                if rank == 0:
                    coordinator.tell(ReformAnswer(tuple(members), number))
                new = NewGroup(mesh, new_members, coordinator, pending, self._membership.hosts[0].transport)
                joined = join(new)
                # All ranks get through this, or fail together: none is left behind alone.
                status = joined.live.native.barrier(max(deadline.left, _PAUSE_SECONDS))
                if status:
                    text = joined.live.native.failure()[3]
                    joined.live.native.close()
                    raise RendezvousError(text)
        except (FerruleError, OSError) as error:
            self._await_verdict(members, error)
            return None
        return joined, Membership(mesh, new_members, new.hosts, key, self._lineage)

    def _await_verdict(self, members: Sequence[int], error: FerruleError | OSError) -> None:
        """A rank was lost, most likely. If none was, a rank between may not have known yet that it is."""
        self._problem = str(error)
        end = time.monotonic() + _VERDICT_SECONDS
        while set(members) <= set(self._survivors()):
            if time.monotonic() > end:
                self._in_vain += 1
                if self._in_vain == _MOST_IN_VAIN:
                    raise error
                return
            time.sleep(_PAUSE_SECONDS)
