"""The coordinator protocol of a group that is being made: every rank reports to rank 0, which decides and tells all."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from ferrule.errors import FabricTimeout, FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import Abort, ControlChannel, Deadline
from ferrule.fabric.join.loop import READ, Loop

Report = TypeVar("Report")
Decision = TypeVar("Decision")
_REASON_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
"""Seconds after its deadline in which rank 0, on a busy host, may still say why it gave up."""
_NEXT_MESSAGE_SECONDS = 0.1


class Coordinator:
    """Rank 0 has a channel to every other rank, the others one to rank 0. All call the same methods in the same order.

    ``loop``: what has to be served while this rank waits.
    """

    def __init__(
        self, channels: Mapping[int, ControlChannel], rank: int, deadline: Deadline, loop: Loop | None = None
    ) -> None:
        self.channels = dict(channels)
        self.deadline = deadline
        self.loop = loop
        self._rank = rank

    def agree(self, mine: Report, decide: Callable[[Sequence[Report]], Decision], decision: type[Decision]) -> Decision:
        """Decision of rank 0 from the messages of all ranks (``decide`` is called there, with one per rank).

        Raises `RendezvousError` when a rank left or gave up, with its reason.
        """
        if self._rank != 0:
            self.channels[0].send(mine, self.deadline)
            return self.hear(decision)[0]
        said = {0: mine, **self.hear(type(mine))}
        decided = decide([said[rank] for rank in range(len(said))])
        self.tell(decided)
        return decided

    def tell(self, message: object) -> None:
        """Rank 0 tells all others."""
        for channel in self.channels.values():
            channel.send(message, self.deadline)

    def hear(self, kind: type[Report]) -> dict[int, Report]:
        """The next message from every rank, by rank."""
        said: dict[int, Report] = {}
        ready: list[int] = []
        # Rank 0 gives up at its deadline, which is ours too, and then says why.
        deadline = self.deadline if self._rank == 0 else self.deadline.extended(_PATIENCE_SECONDS)
        with contextlib.ExitStack() as stack:
            loop = self.loop or stack.enter_context(contextlib.closing(Loop()))
            for rank, channel in self.channels.items():
                loop.watch(channel.socket, READ, partial(ready.append, rank))
                stack.callback(loop.forget, channel.socket)
            while len(said) < len(self.channels):
                loop.turn(deadline.pause)
                deadline.check()
                while ready:
                    rank = ready.pop()
                    said[rank] = self.channels[rank].receive(kind, deadline)
                    loop.forget(self.channels[rank].socket)
                if deadline.passed and len(said) < len(self.channels):
                    silent = ", ".join(str(rank) for rank in sorted(self.channels.keys() - said.keys()))
                    raise FabricTimeout(
                        f"rank {silent} did not answer within {self.deadline.seconds:g} s of the rendezvous"
                    )
        return said

    def give_up(self, error: BaseException) -> None:
        """Let the others know at once what went wrong; those that are gone need not know."""
        for channel in self.channels.values():
            if isinstance(error, FerruleError):
                with contextlib.suppress(RendezvousError, OSError):
                    channel.send(Abort(str(error)), Deadline(_REASON_SECONDS))
            channel.socket.close()

    def explain(self, error: FerruleError) -> FerruleError:
        """Reason of rank 0, which hears of every failure, for giving up, if it says so about now; else ``error``."""
        channel = self.channels.get(0)
        if channel is None or channel.gave_up or channel.socket.fileno() < 0:
            return error
        # One deadline is for all: rank 0 has just reached it, too.
        pause = _REASON_SECONDS if isinstance(error, FabricTimeout) else _NEXT_MESSAGE_SECONDS
        if select.select([channel.socket], [], [], pause)[0]:
            try:
                channel.receive(Abort, Deadline(_REASON_SECONDS))
            except FerruleError as said:
                return said if channel.gave_up else error
        return error

    def close(self) -> None:
        for channel in self.channels.values():
            channel.socket.close()
