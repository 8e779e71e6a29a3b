"""A pair of ranks agrees on an RDMA path, brings up a queue pair per stream, and sees that frames arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar, get_args

from msgspec import Struct

from ferrule._native import STREAMS, VerbsEndpoint
from ferrule.config import VerbsSettings
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.transports.verbs.paths import Port, QueuePairType, VerbsPath, paths
from ferrule.fabric.transports.verbs.ports import Found

_MAX_ATTEMPTS = 4
_STEP_SECONDS = 3.0


class PairMessage(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of the messages of two ranks over their authenticated connection."""


class Ports(PairMessage, frozen=True):
    """Ports of this host; ``reason``: why there are none, or fewer than one might expect."""

    ports: tuple[Port, ...]
    types: tuple[QueuePairType, ...]
    reason: str


class NextPath(PairMessage, frozen=True):
    """The lower rank's choice of what to try; None: nothing works, for this reason."""

    path: VerbsPath | None
    reason: str = ""


class QueuePairs(PairMessage, frozen=True):
    """This rank's ends, or its problem."""

    problem: str
    ends: tuple[bytes, ...]


class Step(PairMessage, frozen=True):
    """Whether a step worked: the problem, or nothing."""

    problem: str


M = TypeVar("M", bound=PairMessage)


class Pair:
    """Two ranks while they agree on a path. Both make it, and `connect`.

    ``endpoints``: what came out, one per stream, in the order of the streams' numbers; empty where there is none.
    ``text``: the path. ``promising``: one of them has RDMA at all.
    """

    def __init__(self, rank: int, other: int, channel: ControlChannel, deadline: Deadline) -> None:
        self._low = rank < other
        self._ranks = (rank, other)
        self._channel = channel
        self._deadline = deadline
        self.endpoints: tuple[VerbsEndpoint, ...] = ()
        self.text = ""
        self.promising = False

    def connect(self, found: Found, settings: VerbsSettings) -> str:
        """Fill in the endpoints over the ports that were ``found`` here, or say why that did not work."""
        types = _types(settings)
        met = [self._channel.socket.getsockname()[0], self._channel.socket.getpeername()[0]]
        answer = self._swap(Ports(found.ports, tuple(types), found.reason))
        self.promising = bool(found.ports or answer.ports)
        if not self._low:
            return self._follow()
        both = [kind for kind in types if kind in answer.types]
        reason = _why_none(self._ranks, (found.ports, answer.ports), (found.reason, answer.reason))
        for path in paths(found.ports, answer.ports, both, (met[0], met[1]))[:_MAX_ATTEMPTS]:
            self._channel.send(NextPath(path), self._deadline)
            reason = self._attempt(path)
            if not reason:
                return ""
        self._channel.send(NextPath(None, reason), self._deadline)
        return reason

    def _follow(self) -> str:
        while True:
            offer = self._channel.receive(NextPath, self._deadline)
            if offer.path is None:
                return offer.reason
            if not self._attempt(offer.path):
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
            answer = self._swap(QueuePairs(problem, tuple(endpoint.local for endpoint in endpoints)))
            problem = self._blame(problem, answer.problem)
            if not problem:
                problem = self._together(lambda: _join(endpoints, answer.ends, self._step_seconds))
            if not problem:
                problem = self._together(lambda: _prove(endpoints, self._step_seconds))
            done = not problem
        finally:
            if not done:
                close(endpoints)
        if done:
            self.endpoints = tuple(endpoints)
            self.text = f"verbs {path.type} {mine.device} {mine.label}".rstrip()
        return problem and f"{mine.device} to {theirs.device} ({path.type}): {problem}"

    @property
    def _step_seconds(self) -> float:
        return min(_STEP_SECONDS, self._deadline.left)

    def _together(self, action: Callable[[], None]) -> str:
        problem = _step(action)
        return self._blame(problem, self._swap(Step(problem)).problem)

    def _blame(self, mine: str, theirs: str) -> str:
        problems = [f"rank {rank}: {text}" for rank, text in zip(self._ranks, (mine, theirs), strict=True) if text]
        return "; ".join(problems)

    def _swap(self, message: M) -> M:
        self._channel.send(message, self._deadline)
        return self._channel.receive(type(message), self._deadline)


def _types(settings: VerbsSettings) -> list[QueuePairType]:
    if settings.type != "auto":
        return [settings.type]
    # Thunderbolt ports of Macs know UC only, although they make RC queue pairs.
    return ["UC"] if sys.platform == "darwin" else list(get_args(QueuePairType))


def _why_none(ranks: tuple[int, int], ports: tuple[Sequence[Port], Sequence[Port]], reasons: tuple[str, str]) -> str:
    lacking = [f"rank {rank}: {reason}" for rank, own, reason in zip(ranks, ports, reasons, strict=True) if not own]
    return "; ".join(lacking) or "no port of one reaches a port of the other: no common subnet, or no common type"


def _step(action: Callable[[], None]) -> str:
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


def close(endpoints: Sequence[VerbsEndpoint]) -> None:
    for endpoint in endpoints:
        endpoint.close()
