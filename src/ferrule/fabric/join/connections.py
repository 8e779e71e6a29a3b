"""The connections of a new group: to lower ranks they are made, from higher ranks they arrive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ferrule.errors import FerruleError
from ferrule.fabric.join.control_channel import ControlChannel
from ferrule.fabric.join.decisions import all_routed
from ferrule.fabric.join.dial import Call, dial
from ferrule.fabric.join.handshake import Role
from ferrule.fabric.join.mesh import STREAMS
from ferrule.fabric.join.messages import AllRouted, Pair, PairRails, Pairs, Routed
from ferrule.fabric.join.new_group import NewGroup
from ferrule.fabric.join.pending import Place
from ferrule.fabric.routing.paths import Path, Rail, keep

Calls = Mapping[tuple[int, Rail], Sequence[Call]]
"""For each rail to a lower rank, a call per role."""


class Connections:
    """``channels``: what there is by now. ``notes``: by rank, which other paths there might have been, and why not."""

    def __init__(self, new: NewGroup) -> None:
        self._new = new
        self.channels: dict[Place, ControlChannel] = {}
        self.notes: dict[int, tuple[str, ...]] = {}

    def all_calls(self) -> Calls:
        """Over every rail there may be."""
        plan = {}
        for other in range(self._new.rank):
            possible = self._new.candidates(other)
            hosts = {rail.address[0] for rail in possible if rail.interface}
            # The address by which the ranks met is an interface's, as a rule.
            plan[other] = [rail for rail in possible if rail.interface or rail.address[0] not in {*hosts, ""}]
        return {
            (other, rail): [
                self._new.mesh.call(rail, self._new.identity(role, other, rail.number)) for role in self._new.roles
            ]
            for other, rails in plan.items()
            for rail in rails
        }

    def known_calls(self) -> Calls:
        """Over the paths that the mesh knows to work."""
        calls = {}
        for other in range(self._new.rank):
            member = self._new.members[other]
            for rail in self._new.mesh.paths[member].rails or (Rail(0, ("", 0)),):
                identities = [self._new.identity(role, other, rail.number) for role in self._new.roles]
                calls[other, rail] = self._new.mesh.calls(member, identities)
        return calls

    def connect(self, calls: Calls) -> tuple[PairRails, ...]:
        """Make the calls; the rails to use to each rank below."""
        flat = [call for group in calls.values() for call in group]
        results = iter(self._dial(flat))
        made: dict[tuple[int, Rail], list[ControlChannel]] = {}
        failed: dict[int, list[tuple[Rail, FerruleError]]] = {}
        for (other, rail), group in calls.items():
            outcome = [next(results) for _ in group]
            channels = [result for result in outcome if isinstance(result, ControlChannel)]
            errors = [result for result in outcome if not isinstance(result, ControlChannel)]
            if errors:
                failed.setdefault(other, []).append((rail, errors[0]))
                _close(channels)
            else:
                made[other, rail] = channels
        return tuple(self._keep(other, calls, made, failed.get(other, [])) for other in range(self._new.rank))

    def _keep(
        self,
        other: int,
        calls: Calls,
        made: Mapping[tuple[int, Rail], Sequence[ControlChannel]],
        failed: Sequence[tuple[Rail, FerruleError]],
    ) -> PairRails:
        tried = [rail for peer, rail in calls if peer == other]
        kept = keep(tried, {rail.number for peer, rail in made if peer == other})
        for rail in tried:
            channels = made.get((other, rail), ())
            if rail in kept:
                self.channels |= {Place(one.identity.role, other, rail.number): one for one in channels}
            else:
                _close(channels)
        # Where a cable does, it does not matter about the address by which the ranks met.
        notes = tuple(str(error) for rail, error in failed if rail.interface or not kept)
        return PairRails(self._new.rank, other, tuple(rail.number for rail in kept), notes)

    def take_above(self, agreed: Pairs) -> None:
        """Learn what rank 0 tells of who is joined how, and take the connections of those above."""
        mesh, rank = self._new.mesh, self._new.rank
        rails: dict[int, tuple[int, ...]] = {}
        for pair in agreed.pairs:
            if rank not in (pair.high, pair.low):
                continue
            other = pair.low if rank == pair.high else pair.high
            self.notes[other] = pair.notes
            if other > rank:
                rails[other] = pair.rails
            member = self._new.members[other]
            if member not in mesh.paths:
                found = tuple(rail for rail in self._new.candidates(other) if rail.number in pair.rails)
                mesh.paths[member] = Path(found)
        self._take(rails)

    def connect_routed(self, told: Mapping[Pair, tuple[int, ...]]) -> None:
        """Connect to those that share no link with this rank, through the ranks between. Of the first group only.

        No rank goes on before all have connected: a rank that waits here also relays for others.
        """
        mesh, rank = self._new.mesh, self._new.rank
        mesh.routes |= told
        routed = [other for other in range(mesh.size) if other != rank and mesh.route(rank, other) is not None]
        for other in routed:
            mesh.paths[other] = Path()
        calls = [
            call
            for other in routed
            if other < rank
            for call in mesh.calls(other, [self._new.identity(role, other, 0) for role in self._new.roles])
        ]
        failed = []
        for result in self._dial(calls):
            if isinstance(result, ControlChannel):
                self.channels[Place(result.identity.role, result.peer)] = result
            else:
                failed.append(f"rank {rank}: {result}")
        self._new.coordinator.agree(Routed(tuple(failed)), all_routed, AllRouted)
        self._take({other: (0,) for other in routed if other > rank})

    def direct(self) -> dict[int, ControlChannel]:
        """The first rail's channel to each rank that shares a link with this one."""
        linked = {other for other, path in self._new.paths().items() if path.rails}
        places = sorted(place for place in self.channels if place.role == STREAMS[0] and place.rank in linked)
        return {place.rank: self.channels[place] for place in reversed(places)}

    def start_heartbeat(self) -> None:
        """Leave the heartbeat's connections to it."""
        self._new.mesh.start_heartbeat()
        for place in [place for place in self.channels if place.role == Role.CONTROL]:
            self._new.mesh.watch(self.channels.pop(place))

    def close(self) -> None:
        _close(self.channels.values())

    def _dial(self, calls: Sequence[Call]) -> list[ControlChannel | FerruleError]:
        return dial(calls, self._new.mesh.key, self._new.deadline, self._new.mesh.acceptor.loop)

    def _take(self, rails: Mapping[int, Sequence[int]]) -> None:
        places = [
            Place(role, other, one) for other, numbers in rails.items() for one in numbers for role in self._new.roles
        ]
        watched = list(self._new.coordinator.channels.values())
        self.channels |= self._new.pending.take(places, self._new.deadline, watched)


def _close(channels: Collection[ControlChannel]) -> None:
    for channel in channels:
        channel.socket.close()
