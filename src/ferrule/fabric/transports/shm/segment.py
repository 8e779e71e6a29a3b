"""Agree with the ranks of this host on one piece of shared memory, or on doing without."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule._native import Segment
from ferrule.errors import RendezvousError
from ferrule.fabric.join.hosts import RankHost


@dataclass(frozen=True)
class SharedMemory:
    """What came out: the mapped segment and every rank's place in it (-1: not on it), or why there is none."""

    segment: Segment | None
    local_index: tuple[int, ...]
    reason: str = ""


class Sharing:
    """The ranks that look as if they could share memory try it: `offer`, `accept`, and `settle` when all have.

    The lowest of them creates the segment, the others open it, which proves that it really is the same memory. On
    Linux it never has a name: a rank that dies, whenever it does, leaves nothing behind. It is all or none;
    a partial success is given up.
    """

    def __init__(self, rank: int, hosts: Sequence[RankHost]) -> None:
        self._rank = rank
        self._hosts = hosts
        self._choice = hosts[rank].transport
        self._members = [other for other, host in enumerate(hosts) if host.memory_id == hosts[rank].memory_id]
        self._wanted = len(self._members) > 1 and self._choice in ("auto", "shm")
        self._segment: Segment | None = None

    @property
    def partners(self) -> list[int]:
        """The ranks that try it, this one included; empty where none does."""
        return self._members if self._wanted else []

    def offer(self) -> dict[str, Any]:
        """What all others should know: of the rank that creates the segment, where it is or why there is none."""
        if not self._wanted or self._rank != self._members[0]:
            return {}
        token = secrets.token_bytes(16)
        try:
            self._segment = Segment.create(token, len(self._members))
        except OSError as error:
            return {"reason": str(error)}
        return {"place": self._segment.place, "token": token.hex(), "reason": ""}

    def accept(self, offers: Sequence[Mapping[str, Any]]) -> str:
        """Open the segment that was offered to this rank, of all ranks' offers; why that did not work, or ""."""
        if not self._wanted:
            return ""
        offer = offers[self._members[0]]
        if offer["reason"] or self._segment is not None:
            return str(offer["reason"])
        try:
            self._segment = Segment.open(offer["place"], bytes.fromhex(offer["token"]), len(self._members))
        except OSError as error:
            return str(error)
        return ""

    def settle(self, reasons: Sequence[str]) -> SharedMemory:
        """What came out when each rank's `accept` said that.

        Raises `RendezvousError` when the transport "shm" was asked for and there are ranks that it does not join.
        """
        if self._segment is not None:
            self._segment.hide()
        if not self._wanted and self._choice != "shm":
            return SharedMemory(None, ())
        reason = reasons[self._members[0]]
        for rank in self._members[1:]:
            reason = reason or (f"rank {rank}: {reasons[rank]}" if reasons[rank] else "")
        if reason:
            self.drop()
        others = [str(rank) for rank in range(len(self._hosts)) if rank not in self._members]
        if self._choice == "shm" and (reason or others):
            why = reason or f"rank {', '.join(others)} runs where memory cannot be shared"
            raise RendezvousError(
                f"shared memory was asked for but is not to be had: {why}; "
                "let the ranks see each other's processes (docker: --pid=host), or set FERRULE_TRANSPORT=auto"
            )
        if self._segment is None:
            return SharedMemory(None, (), reason)
        index = {member: place for place, member in enumerate(self._members)}
        return SharedMemory(self._segment, tuple(index.get(rank, -1) for rank in range(len(self._hosts))))

    def drop(self) -> None:
        """Leave nothing behind."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None
