"""Agree with the ranks of this host on one piece of shared memory, or on doing without."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrule._native import Segment
from ferrule.errors import RendezvousError
from ferrule.fabric.hosts import RankHost
from ferrule.fabric.link import Deadline, Link


@dataclass(frozen=True)
class SharedMemory:
    """What came out: the mapped segment and every rank's place in it (-1: not on it), or why there is none."""

    segment: Segment | None
    local_index: tuple[int, ...]
    reason: str = ""


def share_memory(rank: int, hosts: Sequence[RankHost], links: Mapping[int, Link], deadline: Deadline) -> SharedMemory:
    """All ranks that look as if they could share memory with this one call this together.

    The lowest of them creates the segment, the others open it, which proves that it really is the same memory, and
    its name is removed before anybody uses it: whatever dies from then on leaves nothing behind. It is all or
    none; a partial success is given up. With transport "shm" anything but success is a `RendezvousError`.
    """
    choice = hosts[rank].transport
    members = [other for other, host in enumerate(hosts) if host.memory_id == hosts[rank].memory_id]
    outcome = SharedMemory(None, ())
    if len(hosts) > 1 and choice != "tcp":
        if len(members) > 1 and rank == members[0]:
            outcome = _create(members, len(hosts), links, deadline)
        elif len(members) > 1:
            outcome = _open(rank, members, len(hosts), links[members[0]], deadline)
        strangers = [other for other in range(len(hosts)) if other not in members]
        if choice == "shm" and (outcome.segment is None or strangers):
            why = outcome.reason or f"rank {', '.join(map(str, strangers))} runs where memory cannot be shared"
            raise RendezvousError(
                f"shared memory was asked for but is not to be had: {why}; "
                "give /dev/shm more room (docker: --shm-size or --ipc=host), or set FERRULE_TRANSPORT=auto"
            )
    return outcome


def _create(members: Sequence[int], world_size: int, links: Mapping[int, Link], deadline: Deadline) -> SharedMemory:
    name = f"/ferrule-{secrets.token_hex(10)}"
    token = secrets.token_bytes(16)
    segment = None
    reason = ""
    try:
        segment = Segment.create(name, token, len(members))
    except OSError as error:
        reason = str(error)
    try:
        for member in members[1:]:
            links[member].send({"segment": name if segment else None, "token": token.hex(), "reason": reason}, deadline)
        if segment:
            for member in members[1:]:
                answer = links[member].receive(deadline)
                if answer["reason"]:
                    reason = f"rank {member}: {answer['reason']}"
    finally:
        if segment:
            Segment.unlink(name)
    if segment:
        for member in members[1:]:
            links[member].send({"reason": reason}, deadline)
    return _outcome(segment, members, world_size, reason)


def _open(rank: int, members: Sequence[int], world_size: int, leader: Link, deadline: Deadline) -> SharedMemory:
    offer = leader.receive(deadline)
    if offer["segment"] is None:
        return SharedMemory(None, (), offer["reason"])
    segment = None
    reason = ""
    try:
        segment = Segment.open(offer["segment"], bytes.fromhex(offer["token"]), len(members))
    except OSError as error:
        reason = str(error)
    leader.send({"reason": reason}, deadline)
    return _outcome(segment, members, world_size, leader.receive(deadline)["reason"])


def _outcome(segment: Segment | None, members: Sequence[int], world_size: int, reason: str) -> SharedMemory:
    if segment is None or reason:
        if segment is not None:
            segment.close()
        return SharedMemory(None, (), reason)
    index = {member: place for place, member in enumerate(members)}
    return SharedMemory(segment, tuple(index.get(rank, -1) for rank in range(world_size)))
