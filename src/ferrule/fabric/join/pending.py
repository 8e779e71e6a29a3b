"""Pending peers: authenticated connections that a group which is being made has not taken yet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ferrule.errors import FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import Abort, ControlChannel, Deadline, left
from ferrule.fabric.join.handshake import Identity, Refusal, Role
from ferrule.fabric.join.loop import Loop
from ferrule.secure import Status

_log = logging.getLogger(__name__)

NO_EPOCH = bytes(16)
"""The epoch of the rendezvous, when the group has none yet."""

_GRACE_SECONDS = 0.8
"""Seconds in which a rank that knows the key, and was refused, may still turn up properly before that becomes an error:
it may have been started with another address or size by mistake, and again without."""
_LOOK_SECONDS = 0.2
_REMIND_SECONDS = 10.0


class Place(NamedTuple):
    """Identity of one connection, for a rank that waits for it."""

    role: Role
    rank: int
    rail: int = 0


class PendingPeers:
    """The connections to ``rank`` of a group of ``size``, named by ``epoch``, from the moment they proved themselves.

    The acceptor's thread brings them; the thread that makes the group takes them. ``roles``: which are wanted.
    ``handlers``: roles whose connections are not waited for, and what to do with one (in the acceptor's
    thread, at once).
    ``strict``: a refused peer may be one of those that are waited for, which then is an error. ``loop``: what
    `take` has to drive so that connections arrive; None when a thread does.
    """

    loop: Loop | None = None

    def __init__(
        self,
        epoch: bytes,
        rank: int,
        size: int,
        roles: Collection[Role],
        handlers: Mapping[Role, Callable[[ControlChannel], None]] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.epoch = epoch
        self._rank = rank
        self._size = size
        self._roles = frozenset(roles)
        self._handlers = dict(handlers or {})
        self._strict = strict
        self._here: dict[Place, ControlChannel] = {}
        self._seen: dict[Place, int] = {}
        self._refused: tuple[float, FerruleError] | None = None
        self._suspicion: FerruleError | None = None
        self._changed = threading.Condition()

    def handle(self, role: Role, handler: Callable[[ControlChannel], None]) -> None:
        """From now on connections of this role go to ``handler``."""
        with self._changed:
            self._handlers[role] = handler

    def refusal(self, who: Identity) -> Refusal | None:
        """Reason why a peer that knows the key is not let in, if so."""
        with self._changed:
            if who.role == Role.RENDEZVOUS and who.epoch == NO_EPOCH and who.target == 0 != self._rank:
                return Refusal(f"rank {self._rank} answers here", Status.ELSEWHERE, self._rank)
            relayed = who.role == Role.RELAY and who.target not in (self._rank, who.rank)
            if who.world_size != self._size or not (who.target == self._rank or relayed):
                return Refusal(
                    f"rank {who.rank} looked for rank {who.target} of {who.world_size} but found rank {self._rank} of "
                    f"{self._size}; check FERRULE_WORLD_SIZE and FERRULE_ADDRESS"
                )
            if not 0 <= who.rank < self._size or who.rank == self._rank:
                return Refusal(f"a peer calls itself rank {who.rank} of {self._size}")
            if who.role in self._handlers:
                return None
            if who.role not in self._roles:
                return Refusal(f"rank {who.rank} belongs to another group")
            place = _place(who)
            if place in self._here or (who.role == Role.RENDEZVOUS and place in self._seen):
                if who.role == Role.RENDEZVOUS and who.rail == self._seen[place]:
                    return Refusal(f"rank {who.rank} is here already by another way", Status.ALREADY)
                return self._claimed_twice(who)
            return None

    def admit(self, channel: ControlChannel) -> None:
        """Take over a connection that was let in."""
        with self._changed:
            handler = self._handlers.get(channel.identity.role)
            if handler is None:
                place = _place(channel.identity)
                self._here[place], self._seen[place] = channel, channel.identity.rail
                self._changed.notify_all()
        if handler is not None:
            handler(channel)

    def stop(self, roles: Collection[Role]) -> None:
        """From now on connections of these roles are not welcome."""
        with self._changed:
            for role in roles:
                self._handlers.pop(role, None)

    def refused(self, error: FerruleError, *, proved: bool) -> None:
        """A peer was not let in, which may have wanted this group. ``proved``: it knows the key.

        Without the key, a connection may claim any rank, so that ends nothing: it is only told if a rank is missing
        at last.
        """
        with self._changed:
            if not proved:
                self._suspicion = error
            elif self._strict and self._refused is None:
                self._refused = (time.monotonic(), error)

    def _claimed_twice(self, who: Identity) -> Refusal:
        text = f"two processes claim to be rank {who.rank}; give every process its own FERRULE_RANK"
        self._refused = (0.0, RendezvousError(text))
        self._changed.notify_all()
        return Refusal(text)

    def take(
        self, places: Collection[Place], deadline: Deadline, watched: Sequence[ControlChannel] = ()
    ) -> dict[Place, ControlChannel]:
        """The channels of all of ``places``, as soon as they are there. ``watched``: to ranks whose end ends this, too.

        Raises `RendezvousError` (missing, claimed twice, left again, or a watched rank gave up) and `AuthError`.
        """
        remind = time.monotonic() + _REMIND_SECONDS
        with self._changed:
            while not all(place in self._here for place in places):
                self._check(places, deadline, watched)
                if time.monotonic() > remind:
                    _log.warning("still waiting for rank %s%s", self._missing(places), self._hint())
                    remind += _REMIND_SECONDS
                self._wait(min(_LOOK_SECONDS, deadline.pause))
            return {place: self._here.pop(place) for place in places}

    def arrived(self, role: Role) -> dict[int, ControlChannel]:
        """Take all that have arrived for this, by rank, although some are missing."""
        with self._changed:
            return {place.rank: self._here.pop(place) for place in list(self._here) if place.role == role}

    def _wait(self, seconds: float) -> None:
        if self.loop is not None:
            self.loop.turn(seconds)
        else:
            self._changed.wait(seconds)

    def _check(self, places: Collection[Place], deadline: Deadline, watched: Sequence[ControlChannel]) -> None:
        deadline.check()
        if self._refused is not None and time.monotonic() > self._refused[0] + _GRACE_SECONDS:
            raise self._refused[1]
        if deadline.passed:
            text = self._missing(places)
            verb = "are" if "," in text else "is"
            kind = RendezvousError if self._suspicion is None else type(self._suspicion)
            raise kind(f"rank {text} {verb} missing after {deadline.seconds:g} s; start every rank{self._hint()}")
        for place in places:
            if place in self._here and left(self._here[place].socket):
                raise RendezvousError(f"rank {place.rank} left during the rendezvous")
        for channel in watched:
            if channel.over:
                channel.receive(Abort, deadline)

    def _hint(self) -> str:
        return "" if self._suspicion is None else f"; a connection was turned away: {self._suspicion}"

    def _missing(self, places: Collection[Place]) -> str:
        return ", ".join(str(rank) for rank in sorted({place.rank for place in places if place not in self._here}))

    def settle(self) -> None:
        """All are there: close what was not taken. From now on only roles of `handle` are let in."""
        with self._changed:
            self._roles = frozenset()
            for channel in self._here.values():
                channel.socket.close()
            self._here.clear()


def _place(who: Identity) -> Place:
    return Place(who.role, who.rank, 0 if who.role == Role.RENDEZVOUS else who.rail)
