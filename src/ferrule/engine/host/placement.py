"""Protocols of placement: what decides where a model's ranks run, and what starts them there.

The engine asks a `Planner` for a `Deployment`, starts it, and asks again when a rank is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import RankOptions
from ferrule.errors import FerruleError


class StartedRanks(Protocol):
    """The rank processes of one start. Nothing of them is used again after `stop`."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """For each rank our end of its control connection (`ferrule.engine.rank.control`); the engine closes it.

        Its end is the sign that the rank is gone, so a connection to another host must notice when that host is
        gone, too.
        """
        ...

    @property
    def hosts(self) -> Sequence[str]:
        """For each rank the name of its host; empty for this machine."""
        ...

    def poll(self) -> Sequence[int | None]:
        """For each rank its exit status, negative for a signal; None while it runs or nothing is known. Never waits."""
        ...

    def log_tail(self, rank: int) -> str:
        """The last lines that a rank wrote, joined by `` | ``; empty where there are none."""
        ...

    async def replace(self, ranks: Sequence[int], deployment: Deployment) -> Sequence[socket.socket]:
        """End these ranks, if they have not ended, and start others in their places, as ``deployment`` says, which meet
        those that are left. Returns our ends of their control connections. Raises `ModelUnavailable` where that cannot
        be, or not now."""
        ...

    async def end(self, ranks: Sequence[int]) -> None:
        """End these at once; they are to be replaced."""
        ...

    def options_of(self, rank: int, options: RankOptions) -> RankOptions:
        """``options`` as this rank has them on its host."""
        ...

    async def stop(self, grace: float) -> None:
        """End every rank: ask, and kill what is left after ``grace`` seconds. Forget their logs. Safe to call twice.

        Returns soon, also where a host does not answer any more; no rank of it may then outlive its connection.
        """
        ...


class RankStarter(Protocol):
    """Starts ``python -m ferrule.process.lifeline ferrule.engine.rank.worker`` for each rank, with the environment by
    which ranks meet (docs/fabric.md), and gives it its options as an argument or as the first message of its
    control connection."""

    async def start(self, options: RankOptions) -> StartedRanks:
        """Start one process for each rank of ``options.plan``, and return without waiting for anything of it.

        Where they cannot be started nothing is left running, and it raises `ModelUnavailable` if that may change by
        itself, else another `FerruleError`, which is final.
        """
        ...

    def moved(self, other: RankStarter) -> Sequence[int] | None:
        """The ranks that ``other`` has on other hosts. None where the others could not go on with them there."""
        ...


class StandbyPool(Protocol):
    """Keeps standby processes, which make the next start quick."""

    async def prepare(self, deployment: Deployment) -> bool:
        """A deployment like this one may have to be started. Called again and again, to replace what has ended.

        Returns whether all is ready.
        """
        ...

    async def close(self) -> None:
        """End what `prepare` started. Safe to call twice."""
        ...


@dataclass(frozen=True)
class Loss:
    """Reason why a deployment ended.

    ``ranks``: those that are gone, or with which others lost touch; ``hosts``: theirs, by name. ``crashed``: a rank
    ended or gave an error of its own; otherwise ranks lost touch with each other: a cable or a host is at fault.
    ``devices``: those that failed, each with the name of its host.
    """

    error: FerruleError
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    crashed: bool
    devices: tuple[tuple[str, DeviceLost], ...] = ()


@dataclass(frozen=True)
class Deployment:
    """Deployment: what to start and how. ``options`` may have another plan or number of ranks than the one before.
    ``note``: what people should know of it, such as a device that is lost."""

    options: RankOptions
    starter: RankStarter
    standby: StandbyPool | None = None
    note: str = ""


class Planner(Protocol):
    """Planner of a model's placement: on which hosts its ranks go."""

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        """The next deployment of the model; ``options`` are those that were asked for at first.

        ``loss``: why the last one ended, None at the very first. Raises `ModelUnavailable` with what is missing where
        the model cannot be held now: then the engine waits, and asks again. Any other `FerruleError` is final.
        """
        ...

    async def keeping(self, options: RankOptions, now: Deployment, loss: Loss) -> Deployment | None:
        """As ``now``, for ranks that are left and go on where they are, and others that take the places of those that
        were lost, there or elsewhere. None where there is no such deployment. Asked before `place` is told of the same
        ``loss``; it raises no `FerruleError`. ``options``: as of `place`."""
        ...

    async def better(self, options: RankOptions, now: Deployment) -> Deployment | None:
        """A deployment to which a model that runs as ``now`` should move, such as on hosts that are back; None: stay.

        Asked every few seconds. It never raises a `FerruleError`: where it cannot be told, the model stays.
        """
        ...

    def chosen(self, deployment: Deployment) -> None:
        """This deployment, of `place` or of `better`, is started now."""
        ...
