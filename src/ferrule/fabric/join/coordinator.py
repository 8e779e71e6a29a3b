"""The coordinator protocol of a group that is being made: every rank reports to rank 0, which decides and tells all."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ferrule.errors import FabricTimeout, FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import Deadline, Link
from ferrule.fabric.join.loop import READ, Loop

Message = dict[str, Any]
_REASON_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
"""How much later than its deadline rank 0, on a busy host, may say why it gave up."""
_NEXT_MESSAGE_SECONDS = 0.1


class Coordinator:
    """Rank 0 holds a link to every other rank, the others one to rank 0. All call the same methods in the same order.

    ``loop``: what has to be served while this rank waits.
    """

    def __init__(self, links: Mapping[int, Link], rank: int, deadline: Deadline, loop: Loop | None = None) -> None:
        self.links = dict(links)
        self.deadline = deadline
        self.loop = loop
        self._rank = rank

    def agree(self, mine: Message, decide: Callable[[Sequence[Message]], Message]) -> Message:
        """What rank 0 decides from the messages of all ranks (``decide`` is called there, with one per rank).

        Raises `RendezvousError` when a rank left or gave up, with its reason.
        """
        if self._rank != 0:
            self.links[0].send(mine, self.deadline)
            return self.hear()[0]
        said = {0: mine, **self.hear()}
        decision = decide([said[rank] for rank in range(len(said))])
        self.tell(decision)
        return decision

    def tell(self, message: Message) -> None:
        """Rank 0 tells all others."""
        for link in self.links.values():
            link.send(message, self.deadline)

    def hear(self) -> dict[int, Message]:
        """The next message over every link."""
        said: dict[int, Message] = {}
        ready: list[int] = []
        # Rank 0 gives up at its deadline, which is ours too, and then says why.
        deadline = self.deadline if self._rank == 0 else self.deadline.extended(_PATIENCE_SECONDS)
        with contextlib.ExitStack() as stack:
            loop = self.loop or stack.enter_context(contextlib.closing(Loop()))
            for rank, link in self.links.items():
                loop.watch(link.socket, READ, partial(ready.append, rank))
                stack.callback(loop.forget, link.socket)
            while len(said) < len(self.links):
                loop.turn(deadline.pause)
                deadline.check()
                while ready:
                    rank = ready.pop()
                    said[rank] = self.links[rank].receive(deadline)
                    loop.forget(self.links[rank].socket)
                if deadline.passed and len(said) < len(self.links):
                    silent = ", ".join(str(rank) for rank in sorted(self.links.keys() - said.keys()))
                    raise FabricTimeout(
                        f"rank {silent} did not answer within {self.deadline.seconds:g} s of the rendezvous"
                    )
        return said

    def give_up(self, error: BaseException) -> None:
        """Let the others know at once what went wrong; those that are gone need not know."""
        for link in self.links.values():
            if isinstance(error, FerruleError):
                with contextlib.suppress(RendezvousError, OSError):
                    link.send({"abort": str(error)}, Deadline(_REASON_SECONDS))
            link.socket.close()

    def explain(self, error: FerruleError) -> FerruleError:
        """Why rank 0, which hears of every failure, gave up, if it says so about now; else ``error``."""
        link = self.links.get(0)
        if link is None or link.gave_up or link.socket.fileno() < 0:
            return error
        # One deadline is for all: rank 0 has just reached it, too.
        pause = _REASON_SECONDS if isinstance(error, FabricTimeout) else _NEXT_MESSAGE_SECONDS
        if select.select([link.socket], [], [], pause)[0]:
            try:
                link.receive(Deadline(_REASON_SECONDS))
            except FerruleError as said:
                return said if link.gave_up else error
        return error

    def close(self) -> None:
        for link in self.links.values():
            link.socket.close()
