"""Make a group: every rank connects to those below it, and all agree on what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from ferrule.errors import FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import Link
from ferrule.fabric.join.coordinator import Coordinator
from ferrule.fabric.join.dial import Call, dial
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.mesh import STREAMS, Mesh
from ferrule.fabric.join.pending import PendingPeers, Place
from ferrule.fabric.routing.algorithms import Strategy, choose_algorithms
from ferrule.fabric.routing.calibration import Measured, Pair, matrix, measure, representatives, schedule, together
from ferrule.fabric.routing.costs import LinkCosts
from ferrule.fabric.routing.known_links import Ends, KnownLinks, known_to_both, link_ends
from ferrule.fabric.routing.paths import Path, Rail, candidates, keep
from ferrule.fabric.routing.routes import find_routes
from ferrule.fabric.routing.topology import best_tree
from ferrule.fabric.transports.build import Joined, Parts
from ferrule.fabric.transports.shm.segment import SharedMemory, Sharing
from ferrule.fabric.transports.verbs.pairs import Verbs, connect_verbs


class Joining:
    """One rank's part in making a group of ``members``, ranks of the mesh in the order of the new group.

    Connections are made by the higher rank of a pair. Waits cannot form a circle: a connection needs the acceptor only.
    ``pending``: where those above arrive. ``transport``: overrides the hosts' choice.
    """

    def __init__(
        self,
        mesh: Mesh,
        members: Sequence[int],
        coordinator: Coordinator,
        pending: PendingPeers,
        transport: str | None = None,
    ) -> None:
        self._mesh = mesh
        self._members = tuple(members)
        self._rank = self._members.index(mesh.rank)
        self._coordinator = coordinator
        self._pending = pending
        hosts = [mesh.hosts[member] for member in self._members]
        self.hosts = tuple(host if transport is None else replace(host, transport=transport) for host in hosts)
        self._links: dict[Place, Link] = {}
        self._sharing = Sharing(self._rank, self.hosts)
        self._notes: dict[int, list[str]] = {}
        self._roles: tuple[Role, ...] = STREAMS
        self._discovers = False
        self._table: dict[str, Any] = {}
        self._measured: dict[int, dict[int, Measured]] = {}

    def discover(self) -> Joined:
        """The first group of a mesh: try all paths there may be, and remember in the mesh which work."""
        mesh = self._mesh
        self._discovers = True
        self._roles = (*STREAMS, Role.CONTROL)
        plan = {}
        for other in range(self._rank):
            possible = self._candidates(other)
            hosts = {rail.address[0] for rail in possible if rail.interface}
            # The address by which the ranks met is an interface's, as a rule.
            plan[other] = [rail for rail in possible if rail.interface or rail.address[0] not in {*hosts, ""}]
        calls = {
            (other, rail): [mesh.call(rail, self._identity(role, other, rail.number)) for role in self._roles]
            for other, rails in plan.items()
            for rail in rails
        }
        return self._join(calls)

    def repeat(self) -> Joined:
        """A later group: the paths are known."""
        calls = {}
        for other in range(self._rank):
            path = self._mesh.paths[self._members[other]]
            for rail in path.rails or (Rail(0, ("", 0)),):
                identities = [self._identity(role, other, rail.number) for role in self._roles]
                calls[other, rail] = self._mesh.calls(self._members[other], identities)
        return self._join(calls)

    def _candidates(self, other: int) -> tuple[Rail, ...]:
        return self._rails(other, self._sockets or 1)

    @property
    def _sockets(self) -> int:
        """How many per interface the hosts are told to have, the least of all; 0: as many as measure faster."""
        return min((host.sockets for host in self.hosts if host.sockets), default=0)

    def _rails(self, other: int, sockets: int) -> tuple[Rail, ...]:
        return candidates(self._rank, self.hosts[self._rank], other, self.hosts[other], sockets)

    def _choose_sockets(self) -> None:
        """Where two sockets measured faster the pair gets a second one, which the higher rank makes soon afterwards.

        Other ranks need not know, and do not wait for it: to begin with it is a rail that is missing.
        """
        if self._sockets:
            return
        for other, measured in self._measured.items():
            member = self._members[other]
            first = self._mesh.paths[member].rails
            fast = {rail.base for rail in first if rail.number in measured and measured[rail.number].sockets > 1}
            numbers = {rail.number for rail in first}
            more = [rail for rail in self._rails(other, 2) if rail.base in fast and rail.number not in numbers]
            self._mesh.paths[member] = Path((*first, *more))

    def _identity(self, role: Role, target: int, rail: int) -> Identity:
        return Identity(role, self._rank, target, len(self._members), self._pending.epoch, rail)

    def _join(self, calls: Mapping[tuple[int, Rail], Sequence[Call]]) -> Joined:
        verbs = Verbs()
        try:
            reached = self._connect(calls)
            known = self._known_links()
            table = self._coordinator.agree(
                {"reached": reached, "notes": self._notes, "segment": self._sharing.offer(), "known": known},
                self._first_decision,
            )
            self._learn(table)
            reason = self._sharing.accept(table["segments"])
            self._take_those_above(table["rails"])
            verbs = self._connect_verbs()
            measured = self._measure(table, verbs) if table["measure"] else {}
            verdict = self._coordinator.agree(
                {"reason": reason, "verbs": list(verbs.endpoints), "costs": measured}, self._second_decision
            )
            memory = self._sharing.settle(verdict["reasons"])
            self._choose_sockets()
            if verdict["routes"]:
                self._connect_routed(verdict["routes"])
            if self._discovers and len(self._members) > 1:
                self._start_heartbeat()
            if verdict["costs"] is not None:
                self._mesh.costs = LinkCosts.from_json(verdict["costs"])
        except BaseException as error:
            cause = self._coordinator.explain(error) if isinstance(error, FerruleError) else error
            for link in self._links.values():
                link.socket.close()
            self._sharing.drop()
            verbs.close()
            if self._discovers and self._mesh.heartbeat is not None:
                self._mesh.heartbeat.close()
            if cause is not error:
                raise cause from error
            raise
        parts = Parts(
            self._rank,
            self._members,
            self.hosts,
            self._pending,
            self._links,
            self._paths(),
            memory,
            verbs,
            self._notes,
            self._mesh.spin_us,
            self._measured,
            self._strategy(memory),
            self._mesh.heartbeat,
        )
        self._pending.settle()
        return parts.build()

    def _connect(self, calls: Mapping[tuple[int, Rail], Sequence[Call]]) -> dict[str, list[int]]:
        """Make the calls; the numbers of the rails to use to each rank below."""
        flat = [call for group in calls.values() for call in group]
        results = iter(dial(flat, self._mesh.key, self._coordinator.deadline, self._mesh.acceptor.loop))
        made: dict[tuple[int, Rail], list[Link]] = {}
        failed: dict[int, list[tuple[Rail, FerruleError]]] = {}
        for (other, rail), group in calls.items():
            outcome = [next(results) for _ in group]
            links = [result for result in outcome if isinstance(result, Link)]
            errors = [result for result in outcome if not isinstance(result, Link)]
            if errors:
                failed.setdefault(other, []).append((rail, errors[0]))
                for link in links:
                    link.socket.close()
            else:
                made[other, rail] = links
        reached = {}
        for other in range(self._rank):
            tried = [rail for peer, rail in calls if peer == other]
            kept = keep(tried, {rail.number for peer, rail in made if peer == other})
            reached[str(other)] = [rail.number for rail in kept]
            # Where a cable does, it does not matter about the address by which the ranks met.
            missed = [error for rail, error in failed.get(other, []) if rail.interface or not kept]
            self._notes[other] = [str(error) for error in missed]
            for rail in tried:
                for link in made.get((other, rail), []):
                    if rail in kept:
                        self._links[Place(link.identity.role, other, rail.number)] = link
                    else:
                        link.socket.close()
        return reached

    def _learn(self, table: Mapping[str, Any]) -> None:
        """What rank 0 tells of who is joined how."""
        for other, member in enumerate(self._members):
            if other == self._rank:
                continue
            pair = _pair(self._rank, other)
            self._notes[other] = table["notes"].get(pair, [])
            if member not in self._mesh.paths:
                possible = self._candidates(other)
                numbers = table["rails"][pair]
                self._mesh.paths[member] = Path(tuple(rail for rail in possible if rail.number in numbers))

    def _take_those_above(self, rails: Mapping[str, Sequence[int]]) -> None:
        places = [
            Place(role, other, number)
            for other in range(self._rank + 1, len(self._members))
            for number in rails[_pair(self._rank, other)]
            for role in self._roles
        ]
        self._links |= self._pending.take(places, self._coordinator.deadline, list(self._coordinator.links.values()))

    def _connect_routed(self, told: Mapping[str, Sequence[int]]) -> None:
        """Connect to those that share no link with this rank, through the ranks between.

        No rank goes on before all have connected: a rank that waits here also relays for others.
        """
        mesh, me = self._mesh, self._rank
        mesh.routes |= {_ends(pair): tuple(between) for pair, between in told.items()}
        routed = [other for other in range(mesh.size) if other != me and mesh.route(me, other) is not None]
        for other in routed:
            mesh.paths[other] = Path()
        calls = [
            call
            for other in routed
            if other < me
            for call in mesh.calls(other, [self._identity(role, other, 0) for role in self._roles])
        ]
        failed = []
        for result in dial(calls, mesh.key, self._coordinator.deadline, mesh.acceptor.loop):
            if isinstance(result, Link):
                self._links[Place(result.identity.role, result.peer)] = result
            else:
                failed.append(f"rank {me}: {result}")
        self._coordinator.agree({"failed": failed}, _all_connected)
        self._take_those_above({_pair(me, other): [0] if other in routed else [] for other in range(me + 1, mesh.size)})

    def _start_heartbeat(self) -> None:
        self._mesh.start_heartbeat()
        for place in [place for place in self._links if place.role == Role.CONTROL]:
            self._mesh.watch(self._links.pop(place))

    def _connect_verbs(self) -> Verbs:
        """RDMA to those that share a link and no memory with this rank."""
        first: dict[int, Link] = {}
        for place, link in sorted(self._links.items(), reverse=True):
            if place.role == STREAMS[0] and self._paths()[place.rank].rails:
                first[place.rank] = link
        return connect_verbs(self._rank, self.hosts, first, self._sharing.partners, self._coordinator.deadline)

    def _measure(self, table: Mapping[str, Any], verbs: Verbs) -> dict[int, list[float]]:
        """What the links to lower ranks cost, as far as this rank measures them, or knows since an earlier start."""
        pairs = set(representatives(self.hosts, self._tcp_pairs(table)).values())
        known = {pair for pair in pairs if _pair(*pair) in table["known"]}
        for low, high in itertools.chain(known, *schedule(pairs - known)):
            other = high if self._rank == low else low
            if self._rank not in (low, high) or other in verbs.endpoints:
                continue
            numbers = table["known"].get(_pair(low, high), {})
            self._measured[other] = {
                place.rail: Measured(*numbers[str(place.rail)])
                if numbers
                else measure(
                    link, higher=self._rank == high, deadline=self._coordinator.deadline, second=self._second(place)
                )
                for place, link in sorted(self._links.items())
                if place[:2] == (STREAMS[0], other)
            }
        self._remember_links()
        costs = {other: together(list(rails.values())) for other, rails in self._measured.items() if other < self._rank}
        return {other: [one.alpha, one.up, one.down] for other, one in costs.items()}

    def _second(self, place: Place) -> Link | None:
        """The other stream's connection over the same cable, to find out whether two sockets are faster than one."""
        path = self._paths()[place.rank].rails
        cable = any(rail.number == place.rail and rail.interface for rail in path)
        return self._links[Place(STREAMS[1], place.rank, place.rail)] if cable and not self._sockets else None

    def _known_links(self) -> dict[str, dict[str, list[float | None]]]:
        """By rank and rail, what this rank knows since an earlier start of the links that there may be."""
        if not self._discovers or self._mesh.calibrate != "cached":
            return {}
        links = KnownLinks()
        known: dict[str, dict[str, list[float | None]]] = {}
        for other in range(len(self.hosts)):
            if other != self._rank and not self._may_share(other, self._rank):
                found = {rail.number: links.find(self._ends(other, rail)) for rail in self._candidates(other)}
                known[str(other)] = {str(number): list(astuple(one)) for number, one in found.items() if one}
        return known

    def _remember_links(self) -> None:
        measured = {
            self._ends(other, rail): self._measured[other][rail.number]
            for other in self._measured
            for rail in self._paths()[other].rails
            if rail.number in self._measured[other]
        }
        KnownLinks().store({ends: one for ends, one in measured.items() if ends is not None and one.at is None})

    def _ends(self, other: int, rail: Rail) -> Ends | None:
        return link_ends(self.hosts[self._rank], self.hosts[other], rail, higher=self._rank > other)

    def _tcp_pairs(self, table: Mapping[str, Any]) -> list[Pair]:
        """The pairs (lower, higher) with a direct link and no memory in common. The same on all ranks."""
        pairs = itertools.combinations(range(len(self.hosts)), 2)
        return [pair for pair in pairs if table["rails"][_pair(*pair)] and not self._may_share(*pair)]

    def _may_share(self, one: int, other: int) -> bool:
        hosts = self.hosts[one], self.hosts[other]
        return hosts[0].memory_id == hosts[1].memory_id and hosts[0].transport in ("auto", "shm")

    def _strategy(self, memory: SharedMemory) -> Strategy:
        """How this group's collectives go; ranks that all share memory have their own ways."""
        if memory.segment is not None and min(memory.local_index) >= 0:
            return Strategy()
        force = None if self.hosts[0].algorithm == "auto" else self.hosts[0].algorithm
        costs = None if self._mesh.costs is None else self._mesh.costs.among(self._members)
        # Members without links among them have nothing to choose from.
        linked = costs is None or best_tree(costs) is not None
        return choose_algorithms(costs, len(self._members), force=force) if linked else Strategy()

    def _first_decision(self, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Who is joined to whom over which rails; what each rank offers to share; whether to measure links."""
        rails, notes = {}, {}
        for rank, report in enumerate(reports):
            for other, numbers in report["reached"].items():
                pair = _pair(rank, int(other))
                rails[pair], notes[pair] = numbers, report["notes"][other]
                if not numbers and not self._discovers:
                    raise RendezvousError(f"rank {rank} cannot reach rank {other}: {'; '.join(notes[pair])}")
        table: dict[str, Any] = {"rails": rails, "notes": notes}
        table["segments"] = [report["segment"] for report in reports]
        calibrates = self._discovers and self._mesh.calibrate != "never"
        table["measure"] = calibrates and bool(self._tcp_pairs(table))
        use_known = self._mesh.calibrate == "cached"
        table["known"] = known_to_both([report["known"] for report in reports], rails) if use_known else {}
        self._table = table
        self._find_routes(None)
        return table

    def _find_routes(self, costs: LinkCosts | None) -> dict[str, Sequence[int]]:
        """For every two ranks that share no link: the ranks between. Raises `RendezvousError` if there is no path."""
        pairs = {_ends(pair): numbers for pair, numbers in self._table["rails"].items()}
        linked = [(low, high) for (high, low), numbers in pairs.items() if numbers]
        routes = find_routes(linked, [host.memory_id for host in self.hosts], costs)
        for (high, low), numbers in pairs.items():
            if not numbers and (high, low) not in routes:
                tried = "; ".join(self._table["notes"][_pair(high, low)]) or "they have no interfaces on one subnet"
                raise RendezvousError(
                    f"rank {high} cannot reach rank {low}, not through other ranks either: {tried}; connect their "
                    "hosts with a cable, or see that FERRULE_INTERFACES leaves out none that leads to a neighbour"
                )
        return {_pair(*ends): route for ends, route in routes.items()}

    def _second_decision(self, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Who could share memory, and what all links cost."""
        decision: dict[str, Any] = {"reasons": [report["reason"] for report in reports], "costs": None}
        costs = None
        if self._table["measure"]:
            transports = {}
            for low, high in itertools.combinations(range(len(self.hosts)), 2):
                if self._may_share(low, high):
                    transports[low, high] = "shm"
                elif self._table["rails"][_pair(low, high)]:
                    transports[low, high] = "verbs" if low in reports[high]["verbs"] else "tcp"
            measured = {
                (int(low), high): Measured(*numbers)
                for high, report in enumerate(reports)
                for low, numbers in report["costs"].items()
            }
            costs = matrix(self.hosts, transports, measured)
            decision["costs"] = None if costs is None else costs.to_json()
        decision["routes"] = self._find_routes(costs) if self._discovers else {}
        return decision

    def _paths(self) -> dict[int, Path]:
        """By the new group's ranks."""
        return {other: self._mesh.path_to(member) for other, member in enumerate(self._members) if other != self._rank}


def _all_connected(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for report in reports:
        if report["failed"]:
            raise RendezvousError(report["failed"][0])
    return {}


def _pair(one: int, other: int) -> str:
    return f"{max(one, other)}-{min(one, other)}"


def _ends(pair: str) -> Pair:
    """The higher one first."""
    high, low = pair.split("-")
    return int(high), int(low)
