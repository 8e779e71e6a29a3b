"""A rank's end of hand-overs between its group and another: a fabric group of the ranks of both, and its thread.

That group is apart from those in which steps run: where it ends, these go on by themselves, and join another one when
the process that started them says so.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import msgspec
import numpy as np

from ferrule import fabric
from ferrule.config import FabricSettings
from ferrule.engine.messages import Event, HandedOver, Join, Joined, Parted
from ferrule.engine.options import PROMPTS, STEP_TIMEOUT, RankOptions
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.handover.meeting import open_listener, settings_to_join
from ferrule.engine.rank.handover.parts import Delivery, Held, deliveries
from ferrule.engine.rank.handover.receive import Inbox
from ferrule.engine.rank.handover.send import Outbox, Sent
from ferrule.engine.rank.handover.store import PartStore
from ferrule.engine.shards.messages import tell_all
from ferrule.errors import EngineError, FerruleError
from ferrule.fabric import Group
from ferrule.plan import Plan
from ferrule.secure import derived_key

MEET_SECONDS = 60.0
"""In which the ranks of both groups must have found each other; those in a long step come late."""
LOOPBACK = "127.0.0.1"
END_SECONDS = 5.0
"""In which the thread leaves a group that was aborted."""

log = logging.getLogger(__name__)


class Told(msgspec.Struct, frozen=True):
    """What each rank says of itself. ``prompts``: whether it computes prompts for others."""

    prompts: bool
    held: tuple[Held, ...]


class HandingRunner(Protocol):
    """`Runner` of a rank that computes prompts for others, or answers to theirs. ``outbox``: what it sends, while it is
    in a hand-over group and computes prompts; the runner fills it layer by layer."""

    world: Group
    options: RankOptions
    plan: Plan
    outbox: Outbox | None

    @property
    def part_store(self) -> PartStore:
        """Raises `PlanError` where its caches are kept in a form in which nothing can be handed over."""
        ...

    @property
    def held(self) -> Sequence[Held]:
        """Key/value heads that this rank keeps of each of its layers."""
        ...


class HandOverEnd:
    """End of the rank of ``runner``. ``settings``: of its own group. ``report``: sends an event to the process that
    started the rank; of the group the first rank tells. ``secret``: of which both groups derive a key for each
    hand-over group, so that no key goes over the fabric (`Meet`)."""

    def __init__(
        self, runner: HandingRunner, settings: FabricSettings, report: Callable[[Event], None], secret: str
    ) -> None:
        self._runner, self._settings, self._report, self._secret = runner, settings, report, secret
        self.prompts = runner.options.hands_over == PROMPTS
        self.inbox = Inbox(runner.part_store, runner.held)
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._groups: dict[int, fabric.Group] = {}
        self._wanted = 0  # number of the group that is to be joined, or is
        self.number = 0
        """Of the group that all have joined; 0: there is none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if self._listener is not None:
            self._listener.close()

    def listen(self, *, beyond: bool) -> tuple[str, ...]:
        """Where the next group is joined: this rank is its first one. Addresses with a port. ``beyond``: also for ranks
        of other hosts; the fabric lets none in without the group's key."""
        if self._listener is not None:
            self._listener.close()
        self._listener, addresses = open_listener(self._settings, beyond=beyond)
        return addresses

    def obey(self, batch: Batch) -> None:
        """What ``batch`` says of hand-overs; to be called before it is run."""
        for request in batch.closed:
            self.inbox.close(request)
        for each in batch.opened:
            self.inbox.open(each.request, each.first, each.blocks)
        if batch.joined is not None:
            self._join(batch.joined)

    def count(self, batch: Batch) -> list[int]:
        """Of each request that a batch of `Kind.RECEIVE` names: how many of its blocks have come on every rank, which
        all call this."""
        came = np.array([*(self.inbox.came(request) for request in batch.counted), 0], dtype=np.int64)
        self._runner.world.all_reduce(came, op="min", timeout=STEP_TIMEOUT)
        return [int(each) for each in came[:-1]]

    def _join(self, join: Join) -> None:
        self._leave()
        self._wanted = join.number
        world, driver = self._runner.world, self._runner.plan.driver
        rank = join.first + (world.rank - driver) % world.size
        listener = self._listener if rank == 0 else None
        key = derived_key(bytes.fromhex(self._secret), f"hand-over {join.number}")
        settings = settings_to_join(self._settings, join, rank, listener, key)
        self._thread = threading.Thread(target=self._serve, args=(settings, join.number), name="hand-over", daemon=True)
        self._thread.start()

    def _leave(self) -> None:
        """Leave the group, if there is one, and end its thread. One that still looks for the others ends later."""
        self._wanted = self.number = 0
        if self._runner.outbox is not None:
            self._runner.outbox.close()
        for group in list(self._groups.values()):
            group.abort("it is made anew")
        if self._groups and self._thread is not None:
            self._thread.join(END_SECONDS)
        self._thread = None

    def _serve(self, settings: FabricSettings, number: int) -> None:
        reason = "it was closed"
        try:
            with fabric.init(settings=settings, timeout=STEP_TIMEOUT, meet_timeout=MEET_SECONDS) as group:
                self._groups[number] = group
                if self._wanted == number:
                    self._exchange(group, number)
        except (FerruleError, OSError, ValueError) as error:
            reason = str(error)
            log.info("the hand-over group ended: %s", error)
        self._groups.pop(number, None)
        if self._wanted == number:
            self.number, self._runner.outbox = 0, None
        if settings.rank == 0:
            self._tell(Parted(number, reason))

    def _exchange(self, group: fabric.Group, number: int) -> None:
        """Until the group ends."""
        own, to = self._deliveries(group)
        if not self.prompts:
            self.inbox.expect_from(own)
            group.barrier(timeout=MEET_SECONDS)
            self.number = number
            if group.rank == 0:
                self._tell(Joined(number))
            self.inbox.receive_all(group)
            return
        sending = [each._replace(to=to[each.to]) for each in own]
        outbox = Outbox(number, group, self._runner.part_store, self._runner.held, sending, self._sent)
        self._runner.outbox = outbox
        try:
            group.barrier(timeout=MEET_SECONDS)  # so that the first prompt finds all ready
            outbox.send_all()
        finally:
            outbox.close()

    def _deliveries(self, group: fabric.Group) -> tuple[list[Delivery], list[int]]:
        """Those of this rank, and which rank of ``group`` each one for answers is. Raises `EngineError`."""
        told = tell_all(group, Told(self.prompts, tuple(self._runner.held)), MEET_SECONDS)
        answers = [rank for rank, each in enumerate(told) if not each.prompts]
        prompts = [rank for rank, each in enumerate(told) if each.prompts]
        found = deliveries([told[rank].held for rank in prompts], [told[rank].held for rank in answers])
        own = prompts.index(group.rank) if self.prompts else answers.index(group.rank)
        return [each for each in found if (each.source if self.prompts else each.to) == own], answers

    def _sent(self, sent: Sent) -> None:
        if self._runner.world.rank == self._runner.plan.driver:
            self._tell(HandedOver(*sent))

    def _tell(self, event: Event) -> None:
        with suppress(EngineError):  # the process that started this one is gone, which its main thread notices
            self._report(event)


def obeyed(end: HandOverEnd | None, batch: Batch) -> None:
    """`HandOverEnd.obey` where there is one."""
    if end is not None:
        end.obey(batch)
