"""Relays: ranks that share no link talk through those between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ferrule import _native
from ferrule.errors import FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import ControlChannel, left
from ferrule.fabric.join.dial import Attempt, Call
from ferrule.fabric.join.handshake import Identity, Steps, not_opened, opened, opening_steps, silent_steps
from ferrule.fabric.join.loop import Loop

_log = logging.getLogger(__name__)

_OPEN_SECONDS = 15.0
"""For the next rank to open its part of the way: longer than a rank may be ahead of it."""

Onward = Callable[[Identity], Sequence[Call] | None]
"""Lookup of the next step towards the target of the rank that asks: calls to try one after the other, with a
``request`` where that rank has to relay too; None as long as this rank does not know. Raises `RendezvousError`."""


@dataclass
class _Asked:
    """A rank that waits for its connection onward."""

    channel: ControlChannel
    onward: Onward
    until: float = 0.0
    calls: list[Call] = field(default_factory=list)
    attempt: Attempt | None = None

    def drop(self) -> None:
        if self.attempt is not None:
            self.attempt.drop()
        self.channel.socket.close()


class Relays:
    """Relayed connections of this rank, which it carries for others. A rank that asks has proved itself; its bytes are
    not looked at.

    Everything but `close` runs in the thread that drives ``loop``, and never waits; bytes go their way on a thread
    of the native core. ``leader``: the call by which this rank has found rank 0.
    """

    def __init__(self, rank: int, key: bytes, loop: Loop) -> None:
        self._rank = rank
        self._key = key
        self._loop = loop
        self.leader: Call | None = None
        self._native: _native.Relay | None = None
        self._asked: list[_Asked] = []
        loop.add_chore(self._before_sleep)

    def serve(self, onward: Onward, channel: ControlChannel) -> None:
        """``channel``: to a rank that asks for its target."""
        self._asked.append(_Asked(channel, onward))

    def to_leader(self, who: Identity) -> Sequence[Call] | None:
        """The `Onward` while there is no group yet."""
        if who.target != 0:
            raise RendezvousError(f"before there is a group only rank 0 can be reached, not rank {who.target}")
        if self.leader is None:
            return None
        return [Call(self.leader.address, who, request=None if self.leader.request is None else who)]

    def close(self, why: str = "it has closed its groups") -> None:
        """The loop is driven no more. Relayed connections get a moment to end; ranks that wait are told why."""
        for one in self._asked:
            self._refuse(one, why)
        self._asked.clear()
        if self._native is not None:
            self._native.close()
            self._native = None

    def _before_sleep(self) -> float | None:
        """Before every sleep: what has come of the calls."""
        now = time.monotonic()
        waiting = []
        for one in self._asked:
            try:
                if not self._advance(one, now):
                    waiting.append(one)
            except FerruleError as error:
                self._refuse(one, str(error))
        self._asked = waiting
        ends = [one.attempt.connect_until if one.attempt.connecting else one.until for one in waiting if one.attempt]
        return min(ends) - now if ends else None

    def _advance(self, one: _Asked, now: float) -> bool:
        """Whether this is over."""
        if left(one.channel.socket):
            one.drop()
            return True
        if one.attempt is None:
            calls = one.onward(one.channel.identity)
            if calls is None:
                return False
            one.calls, one.until = list(calls), now + _OPEN_SECONDS
            self._try_next(one)
        attempt = one.attempt
        assert attempt is not None
        if attempt.result is None and now > (attempt.connect_until if attempt.connecting else one.until):
            attempt.fail("no answer")
        if isinstance(attempt.result, ControlChannel):
            self._join(one, attempt.result)
            return True
        if attempt.result is not None:
            if not one.calls:
                raise attempt.result
            self._try_next(one)
        return False

    def _try_next(self, one: _Asked) -> None:
        call = one.calls.pop(0)
        request = call.request

        def steps() -> Steps:
            return silent_steps(call.identity) if request is None else opening_steps(self._key, request)

        one.attempt = Attempt(call, self._key, self._loop, steps)
        one.attempt.start()

    def _join(self, one: _Asked, onward: ControlChannel) -> None:
        with suppress(OSError):  # it has gone meanwhile, and the relay finds that out
            one.channel.socket.send(opened(one.channel.session))
        try:
            self._native = self._native or _native.Relay()
            self._native.add(one.channel.socket.detach(), onward.socket.detach())
        except RuntimeError as error:  # no more descriptors or threads; both ends see their connection end
            one.drop()
            onward.socket.close()
            _log.warning("rank %d cannot relay for rank %d: %s", self._rank, one.channel.peer, error)

    def _refuse(self, one: _Asked, why: str) -> None:
        with suppress(OSError):
            one.channel.socket.send(not_opened(f"rank {self._rank} does not relay: {why}"))
        one.drop()
