"""Make a group: every rank connects to those below it, all agree on what came of it, and transports carry the rest."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, json

from ferrule.errors import FerruleError
from ferrule.fabric.join.connections import Connections
from ferrule.fabric.join.decisions import Decisions, measured_pairs
from ferrule.fabric.join.mesh import STREAMS, epoch_number
from ferrule.fabric.join.messages import Joins, Pairs, Reached, Verdict
from ferrule.fabric.join.new_group import NewGroup
from ferrule.fabric.routing.algorithms import Strategy, choose_algorithms
from ferrule.fabric.routing.measuring import Measuring
from ferrule.fabric.routing.topology import best_tree
from ferrule.fabric.transports import table
from ferrule.fabric.transports.build import Joined, build
from ferrule.fabric.transports.protocol import PeerConnections, Session


def join(new: NewGroup) -> Joined:
    """One rank's part in making a group.

    Connections are made by the higher rank of a pair. Waits cannot form a circle: a connection needs the acceptor only.
    """
    mesh, coordinator = new.mesh, new.coordinator
    connections = Connections(new)
    calls = connections.all_calls() if new.first else connections.known_calls()
    sessions = table.sessions(new.rank, new.hosts, new.deadline)
    measuring = Measuring(new, connections, table.expected)
    typical = {transport.name: transport.typical for transport in table.TRANSPORTS}
    decisions = Decisions(
        new.hosts, first=new.first, calibrate=mesh.calibrate, expected=table.expected, typical=typical
    )
    try:
        pairs = connections.connect(calls)
        made = {session.name: session.offer() for session in sessions}
        offers = {name: Raw(json.encode(offer)) for name, offer in made.items() if offer is not None}
        reached = Reached(pairs, offers, measuring.known())
        agreed = coordinator.agree(reached, decisions.pairs, Pairs)
        connections.take_above(agreed)
        reasons = _connect(sessions, connections, agreed)
        joined = {other for session in sessions if session.typical is not None for other in session.peers}
        to_measure = measured_pairs(agreed.pairs, new.hosts, table.expected) if agreed.measure else []
        costs = measuring.measure(agreed, to_measure, joined) if to_measure else {}
        peers = {session.name: tuple(session.peers) for session in sessions}
        verdict = coordinator.agree(Joins(peers, reasons, costs), decisions.verdict, Verdict)
        for session in sessions:
            session.settle([told.get(session.name, "") for told in verdict.reasons])
        measuring.choose_sockets()
        if verdict.routes:
            connections.connect_routed(dict(verdict.routes))
        if new.first and new.size > 1:
            connections.start_heartbeat()
        if verdict.costs is not None:
            mesh.costs = verdict.costs
    except BaseException as error:
        cause = coordinator.explain(error) if isinstance(error, FerruleError) else error
        connections.close()
        for session in sessions:
            session.close()
        if new.first and mesh.heartbeat is not None:
            mesh.heartbeat.close()
        if cause is not error:
            raise cause from error
        raise
    new.pending.settle()
    return build(
        mesh,
        new.members,
        new.hosts,
        new.pending,
        sessions,
        _strategy(new, sessions),
        _ends(new, connections, measuring),
    )


def _connect(sessions: Sequence[Session], connections: Connections, agreed: Pairs) -> dict[str, str]:
    """Each pair of ranks tries the transports in their order, until one joins it; why others did not."""
    reasons: dict[str, str] = {}
    joined: set[int] = set()
    channels = connections.direct()
    for session in sessions:
        offers = [offers.get(session.name) for offers in agreed.offers]
        reasons[session.name] = session.connect(offers, channels, joined)
        joined |= set(session.peers)
    return reasons


def _ends(new: NewGroup, connections: Connections, measuring: Measuring) -> dict[int, PeerConnections]:
    ends = {}
    for other, path in new.paths().items():
        streams = tuple(
            {
                place.rail: connections.channels[place]
                for place in sorted(connections.channels)
                if place[:2] == (role, other)
            }
            for role in STREAMS
        )
        epoch = epoch_number(new.pending.epoch)
        ends[other] = PeerConnections(
            new.rank, other, epoch, streams, path, measuring.measured.get(other, {}), connections.notes.get(other, ())
        )
    return ends


def _strategy(new: NewGroup, sessions: Sequence[Session]) -> Strategy:
    """Strategy of this group's collectives; ranks that all share memory have algorithms of their own."""
    if any(session.memory is not None and min(session.memory.local_index) >= 0 for session in sessions):
        return Strategy()
    force = None if new.hosts[0].algorithm == "auto" else new.hosts[0].algorithm
    costs = None if new.mesh.costs is None else new.mesh.costs.among(new.members)
    # Members without links among them have nothing to choose from.
    linked = costs is None or best_tree(costs) is not None
    return choose_algorithms(costs, new.size, force=force) if linked else Strategy()
