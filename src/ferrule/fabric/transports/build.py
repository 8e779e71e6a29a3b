"""From connections to a native group: a channel per peer and stream, of the transport that joins the pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrule import _native
from ferrule.fabric.describe import GroupInfo, PeerInfo
from ferrule.fabric.join.hosts import RankHost, oversubscribed
from ferrule.fabric.join.mesh import STREAMS, Live, Mesh, epoch_number
from ferrule.fabric.join.pending import PendingPeers
from ferrule.fabric.routing.algorithms import Strategy
from ferrule.fabric.transports.protocol import PeerConnections, Session
from ferrule.process.control_groups import processor_quota

_SPIN_US = 40.0
_YIELD_US = 20_000.0
"""As long as most stages of a pipeline wait for the others: a core that has slept is slower for milliseconds. Another
process that needs the core gets it at once (native/src/wait/wait.cpp)."""


@dataclass(frozen=True)
class Joined:
    """A group that is ready, and what can be told about it."""

    live: Live
    info: GroupInfo


def build(
    mesh: Mesh,
    members: tuple[int, ...],
    hosts: Sequence[RankHost],
    pending: PendingPeers,
    sessions: Sequence[Session],
    strategy: Strategy,
    ends: Mapping[int, PeerConnections],
) -> Joined:
    """``members``: the mesh's ranks. ``sessions``: in the order of preference. ``ends``: to every other rank.

    Sockets, segment and queue pairs become the group's.
    """
    rank, size = members.index(mesh.rank), len(members)
    carriers = {other: next(session for session in sessions if other in session.peers) for other in ends}
    peers = []
    for other, host in enumerate(hosts):
        if other == rank:
            peers.append(PeerInfo(other, host.host, host.pid, "self", "-"))
            continue
        text, rails = carriers[other].describe(ends[other])
        peers.append(
            PeerInfo(
                other, host.host, host.pid, carriers[other].name, text, rails, ends[other].path.via, ends[other].notes
            )
        )
    notes = [note for session in sessions for note in session.notes]
    crowded = oversubscribed([host.cpus for host in hosts if host.kernel == hosts[rank].kernel])
    if crowded:
        notes.append("more ranks than cores on this machine: waiting yields at once")
    quota, beside = processor_quota(), sum(host.host == hosts[rank].host for host in hosts)
    rationed = quota is not None and quota < beside
    if rationed:
        notes.append(f"the control group has {quota:g} of a core's time for {beside} ranks: waiting sleeps at once")
    spin_us, yield_us = awake(mesh.spin_us, crowded=crowded, rationed=rationed)
    collectives, messages = [
        [None if other == rank else carriers[other].channel(stream, ends[other]) for other in range(size)]
        for stream in range(len(STREAMS))
    ]
    memory = next((session.memory for session in sessions if session.memory is not None), None)
    native = _native.Group(
        rank,
        epoch_number(pending.epoch),
        collectives,
        messages,
        None if memory is None else memory.segment,
        [] if memory is None else list(memory.local_index),
        spin_us,
        yield_us,
        strategy.native_decisions(),
        list(strategy.tree),
        list(strategy.ring),
        mesh.heartbeat,
        list(members) if mesh.heartbeat is not None else [],
    )
    info = GroupInfo(rank, size, tuple(peers), tuple(notes), strategy)
    return Joined(Live(native, members, rank, pending), info)


def awake(asked_us: float | None, *, crowded: bool, rationed: bool) -> tuple[float, float]:
    """Microseconds for which a rank that waits spins, and then yields, before it sleeps. ``asked_us``: of spinning, as
    the user said; 0: it sleeps at once. ``crowded``: more ranks than cores. ``rationed``: by a control group that has
    less than a core for each rank: time awake is then taken from computing."""
    if asked_us == 0.0 or (asked_us is None and rationed):
        return 0.0, 0.0
    if asked_us is None:
        asked_us = 0.0 if crowded else _SPIN_US
    return asked_us, _YIELD_US
