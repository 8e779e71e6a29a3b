"""Join ranks by RDMA: each pair agrees on a path, brings up a queue pair per stream, and sees that frames arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from ferrule._native import STREAMS, VerbsEndpoint
from ferrule.config import VerbsSettings, verbs_settings
from ferrule.errors import RendezvousError
from ferrule.fabric.join.control_channel import Deadline, Link
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.transports.verbs.paths import Port, QueuePairType, VerbsPath, paths
from ferrule.fabric.transports.verbs.ports import Found, find_ports

_MAX_ATTEMPTS = 4
_STEP_SECONDS = 3.0


@dataclass
class Verbs:
    """What came out. ``endpoints``: by rank, one per stream, in the order of the streams' numbers; ``texts``:
    the path, by rank.
    """

    endpoints: dict[int, tuple[VerbsEndpoint, ...]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def close(self) -> None:
        for endpoints in self.endpoints.values():
            _close(endpoints)


def connect_verbs(
    rank: int, hosts: Sequence[RankHost], links: Mapping[int, Link], shared: Container[int], deadline: Deadline
) -> Verbs:
    """Every rank calls this with its authenticated ``links``; ``shared``: the ranks with which it shares memory.

    With transport "auto" a pair without a working path does without, and a note says why where it looks as if there
    were one. With "verbs" that is a `RendezvousError`. Pairs go one after the other, in an order (of the lower, then
    of the higher rank) in which waits cannot form a circle.
    """
    verbs = Verbs()
    choice = hosts[rank].transport
    others = [other for other in sorted(links) if other not in shared]
    if choice not in ("auto", "verbs") or not others:
        return verbs
    settings = verbs_settings(os.environ)
    found = find_ports(settings, software=choice == "verbs")
    try:
        for other in others:
            pair = Pair(rank, other, links[other], deadline)
            reason = pair.connect(found, settings)
            if pair.endpoints:
                verbs.endpoints[other] = pair.endpoints
                verbs.texts[other] = pair.text
            elif choice == "verbs":
                raise RendezvousError(
                    f"RDMA was asked for, but ranks {min(rank, other)} and {max(rank, other)} have none: {reason}; "
                    "`ferrule driver check` on both hosts says what is missing, or set FERRULE_TRANSPORT=auto"
                )
            elif pair.promising:
                verbs.notes.append(f"no RDMA to rank {other}: {reason}")
    except BaseException:
        verbs.close()
        raise
    return verbs


class Pair:
    """Two ranks while they agree on a path. Both make it, and `connect`.

    ``endpoints``: what came out, one per stream, in the order of the streams' numbers; empty where there is none.
    ``text``: the path. ``promising``: one of them has RDMA at all.
    """

    def __init__(self, rank: int, other: int, link: Link, deadline: Deadline) -> None:
        self._low = rank < other
        self._ranks = (rank, other)
        self._link = link
        self._deadline = deadline
        self.endpoints: tuple[VerbsEndpoint, ...] = ()
        self.text = ""
        self.promising = False

    def connect(self, found: Found, settings: VerbsSettings) -> str:
        """Fill in the endpoints over the ports that were ``found`` here, or say why that did not work."""
        types = _types(settings)
        met = [self._link.socket.getsockname()[0], self._link.socket.getpeername()[0]]
        offer = {"ports": [port.to_json() for port in found.ports], "types": types, "reason": found.reason}
        answer = self._swap(offer)
        theirs = [Port.from_json(fields) for fields in answer["ports"]]
        self.promising = bool(found.ports or theirs)
        if not self._low:
            return self._follow()
        both = [kind for kind in types if kind in answer["types"]]
        reason = _why_none(self._ranks, (found.ports, theirs), (found.reason, answer["reason"]))
        for path in paths(found.ports, theirs, both, (met[0], met[1]))[:_MAX_ATTEMPTS]:
            self._send({"path": path.to_json()})
            reason = self._attempt(path)
            if not reason:
                return ""
        self._send({"path": None, "reason": reason})
        return reason

    def _follow(self) -> str:
        while True:
            offer = self._link.receive(self._deadline)
            if offer["path"] is None:
                return str(offer["reason"])
            if not self._attempt(VerbsPath.from_json(offer["path"])):
                return ""

    def _attempt(self, path: VerbsPath) -> str:
        """Try one path, in step with the other rank; why it does not work, empty if it does."""
        mine, theirs = path.ends if self._low else path.ends[::-1]
        endpoints: list[VerbsEndpoint] = []
        done = False
        try:
            problem = _step(
                lambda: endpoints.extend(
                    VerbsEndpoint(mine.device, mine.port, mine.gid_index, path.type, stream, mine.address, self._low)
                    for stream in sorted(STREAMS.values())
                )
            )
            answer = self._swap({"problem": problem, "ends": [endpoint.local.hex() for endpoint in endpoints]})
            problem = self._blame(problem, answer["problem"])
            if not problem:
                others = [bytes.fromhex(end) for end in answer["ends"]]
                problem = self._together(lambda: _join(endpoints, others, self._step_seconds))
            if not problem:
                problem = self._together(lambda: _prove(endpoints, self._step_seconds))
            done = not problem
        finally:
            if not done:
                _close(endpoints)
        if done:
            self.endpoints = tuple(endpoints)
            self.text = f"verbs {path.type} {mine.device} {mine.label}".rstrip()
        return problem and f"{mine.device} to {theirs.device} ({path.type}): {problem}"

    @property
    def _step_seconds(self) -> float:
        return min(_STEP_SECONDS, self._deadline.left)

    def _together(self, action: Any) -> str:
        problem = _step(action)
        return self._blame(problem, self._swap({"problem": problem})["problem"])

    def _blame(self, mine: str, theirs: str) -> str:
        problems = [f"rank {rank}: {text}" for rank, text in zip(self._ranks, (mine, theirs), strict=True) if text]
        return "; ".join(problems)

    def _send(self, message: dict[str, Any]) -> None:
        self._link.send(message, self._deadline)

    def _swap(self, message: dict[str, Any]) -> dict[str, Any]:
        self._send(message)
        return self._link.receive(self._deadline)


def _types(settings: VerbsSettings) -> list[QueuePairType]:
    if settings.type != "auto":
        return [settings.type]
    # Thunderbolt ports of Macs know UC only, although they make RC queue pairs.
    return ["UC"] if sys.platform == "darwin" else list(get_args(QueuePairType))


def _why_none(ranks: tuple[int, int], ports: tuple[Sequence[Port], Sequence[Port]], reasons: tuple[str, str]) -> str:
    lacking = [f"rank {rank}: {reason}" for rank, own, reason in zip(ranks, ports, reasons, strict=True) if not own]
    return "; ".join(lacking) or "no port of one reaches a port of the other: no common subnet, or no common type"


def _step(action: Any) -> str:
    try:
        action()
    except OSError as error:
        return str(error)
    return ""


def _join(endpoints: Sequence[VerbsEndpoint], others: Sequence[bytes], seconds: float) -> None:
    for endpoint, other in zip(endpoints, others, strict=True):
        endpoint.join(other, seconds)


def _prove(endpoints: Sequence[VerbsEndpoint], seconds: float) -> None:
    for endpoint in endpoints:
        endpoint.prove(seconds)


def _close(endpoints: Sequence[VerbsEndpoint]) -> None:
    for endpoint in endpoints:
        endpoint.close()
