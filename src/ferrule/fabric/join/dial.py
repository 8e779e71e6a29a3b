"""Connect to ranks: many at once, each over the interface it should use, and all within a time."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from ferrule.errors import AuthError, FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.handshake import Elsewhere, Identity, Refused, Role, Steps, connect_steps, relayed_steps
from ferrule.fabric.join.listen import resolve
from ferrule.fabric.join.loop import READ, WRITE, Loop
from ferrule.secure.token import write_address

CONNECT_SECONDS = 1.5
"""Time limit for a host to answer at all: what has not by then is behind a cable that is out, or a firewall."""
_RETRY_SECONDS = 0.05
_AT_ONCE = 16
"""Of the calls to one address: where many ranks pass through one, all their calls arrive there."""
_IN_PROGRESS = (errno.EINPROGRESS, errno.EAGAIN, errno.EINTR)


@dataclass(frozen=True)
class Call:
    """Target of a connection, and how to make it.

    ``source``: the address of this host from which; ``interface``: where it has it. ``request``: who answers at
    ``address`` is not the target of ``identity``, and is asked to relay to it. ``via``: the ranks between, the nearest
    first, as far as they are known. ``encrypt``: what is said to the target.
    """

    address: tuple[str, int]
    identity: Identity
    source: str = ""
    interface: str = ""
    request: Identity | None = None
    via: tuple[int, ...] = ()
    encrypt: bool = False

    def __str__(self) -> str:
        over = f" over {self.interface}" if self.interface else ""
        via = " via " + ", ".join(f"rank {rank}" for rank in self.via) if self.via else ""
        return f"rank {self.identity.target}{via} at {write_address(self.address)}{over}"

    def steps(self, key: bytes) -> Steps:
        """Steps of the handshake."""
        if self.request is None:
            return connect_steps(key, self.identity, encrypt=self.encrypt)
        return relayed_steps(key, self.request, self.identity, encrypt=self.encrypt)


def dial(
    calls: Sequence[Call], key: bytes, deadline: Deadline, loop: Loop | None = None
) -> list[ControlChannel | FerruleError]:
    """Make all calls at the same time; for each the channel, or why there is none.

    A host has `CONNECT_SECONDS` to answer; once it has, its rank has until the deadline to shake hands. ``loop``:
    what has to be served meanwhile.
    """
    with _using(loop) as using:
        attempts = [Attempt(call, key, using) for call in calls]
        started: list[Attempt] = []
        try:
            while len(started) < len(attempts) or any(attempt.result is None for attempt in started):
                started += _start_more(attempts[len(started) :], started)
                _turn(using, started, deadline)
        except BaseException:
            for attempt in started:
                attempt.drop()
            raise
    return [attempt.result for attempt in attempts if attempt.result is not None]


def _start_more(attempts: Iterable[Attempt], started: Sequence[Attempt]) -> list[Attempt]:
    busy = Counter(attempt.call.address for attempt in started if attempt.result is None)
    more = []
    for attempt in attempts:
        if busy[attempt.call.address] == _AT_ONCE:
            break
        busy[attempt.call.address] += 1
        attempt.start()
        more.append(attempt)
    return more


def reach(
    addresses: Sequence[tuple[str, int]],
    key: bytes,
    identity: Identity,
    deadline: Deadline,
    loop: Loop | None = None,
    *,
    encrypt: bool = False,
) -> tuple[ControlChannel, Call]:
    """Connect to a rank that listens at one of ``addresses``, or soon will; through another rank if one answers there.

    Returns the channel and the call that led there.
    """
    # Several addresses may lead there at the same time: by this number the target knows that they are one process.
    identity = replace(identity, rail=secrets.randbits(31))
    with _using(loop) as using:
        attempts = [Attempt(Call(address, identity, encrypt=encrypt), key, using) for address in addresses]
        for attempt in attempts:
            attempt.start()
        try:
            while not deadline.passed:
                _turn(using, attempts, deadline)
                for attempt in attempts:
                    if isinstance(attempt.result, ControlChannel):
                        attempts.remove(attempt)
                        return attempt.result, attempt.call
                _try_again(attempts)
        finally:
            for attempt in attempts:
                attempt.drop()
    where = " or ".join(str(attempt.call) for attempt in attempts)
    problem = "; ".join(dict.fromkeys(attempt.problem for attempt in attempts if attempt.problem)) or "no answer"
    raise RendezvousError(
        f"cannot reach {where} within {deadline.seconds:g} s: {problem}; is it started? "
        "FERRULE_ADDRESS must lead to rank 0, or to a neighbour that is nearer to it and has FERRULE_LISTEN"
    )


def _using(loop: Loop | None) -> AbstractContextManager[Loop]:
    """``loop``, or a new one that is closed at the end."""
    return closing(Loop()) if loop is None else nullcontext(loop)


def _try_again(attempts: Sequence[Attempt]) -> None:
    """Retry: what was not there may come. A refusal ends it; a stranger does when no other address is left."""
    for attempt in attempts:
        if isinstance(attempt.result, Elsewhere) and attempt.call.request is None:
            identity, between = attempt.call.identity, attempt.result.rank
            if between == identity.rank:
                attempt.result = RendezvousError(
                    f"what answers at {write_address(attempt.call.address)} is rank {between} itself; "
                    "give FERRULE_ADDRESS of rank 0 or of a neighbour, and every process its own FERRULE_RANK"
                )
                continue
            request = replace(identity, role=Role.RELAY)
            attempt.call = replace(attempt.call, request=request, via=(between,))
            attempt.start()
            attempt.problem = f"rank {between} answers, but has not found rank {identity.target} either"
        elif isinstance(attempt.result, FerruleError) and attempt.absent and time.monotonic() > attempt.again:
            attempt.start()
    final = [attempt.result for attempt in attempts if isinstance(attempt.result, FerruleError) and not attempt.absent]
    for error in final:
        if len(final) == len(attempts) or isinstance(error, AuthError | Refused):
            raise error


def _turn(loop: Loop, attempts: Sequence[Attempt], deadline: Deadline) -> None:
    deadline.check()
    now = time.monotonic()
    waiting = [attempt for attempt in attempts if attempt.result is None]
    for attempt in waiting:
        if deadline.passed:
            attempt.fail(f"no answer within {deadline.seconds:g} s")
        elif attempt.connecting and now > attempt.connect_until:
            attempt.fail("no answer")
    pause = min([deadline.pause, *(attempt.connect_until - now for attempt in waiting if attempt.connecting)])
    if len(waiting) < len(attempts):
        pause = min(pause, _RETRY_SECONDS)
    loop.turn(pause)


class Attempt:
    """One call under way. ``steps``: what is said, if not what the call says."""

    def __init__(self, call: Call, key: bytes, loop: Loop, steps: Callable[[], Steps] | None = None) -> None:
        self.call = call
        self.result: ControlChannel | FerruleError | None = None
        self.absent = False  # nothing listened there yet
        self.again = 0.0
        self.problem = ""
        self.connecting = False
        self.connect_until = 0.0
        self._begin = steps or (lambda: self.call.steps(key))
        self._loop = loop
        self._tries = 0
        self._sock: socket.socket | None = None

    def start(self) -> None:
        call = self.call
        self.result, self.absent, self.connecting = None, False, True
        self.connect_until = time.monotonic() + CONNECT_SECONDS
        self._data = bytearray()
        self._want = 0
        self._heard = False
        self._steps = self._begin()
        try:
            found = resolve(*call.address, call.interface)
            family, address = found[self._tries % len(found)]
            self._tries += 1
            self._sock = socket.socket(family, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            bind(self._sock, call.source, call.interface)
            code = self._sock.connect_ex(address)
        except OSError as error:
            self.fail(error.strerror or str(error))
            return
        if code not in (0, *_IN_PROGRESS):
            self.fail(os.strerror(code))
            return
        self._loop.watch(self._sock, WRITE, self.advance)

    def advance(self) -> None:
        """The socket is ready for the next step."""
        assert self._sock is not None
        try:
            answer: bytes | None = None
            if self.connecting:
                code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                # TCP lets a socket connect to itself when it was given the very port on which nothing listens yet.
                if code or self._sock.getsockname() == self._sock.getpeername():
                    self.fail(os.strerror(code or errno.ECONNREFUSED))
                    return
                self.connecting = False
                self._loop.watch(self._sock, READ, self.advance)
            else:
                piece = self._sock.recv(self._want - len(self._data))
                if not piece:
                    self._hung_up("")
                    return
                self._heard = True
                self._data += piece
                if len(self._data) < self._want:
                    return
                answer = bytes(self._data)
                self._data.clear()
            self._step(answer)
        except BlockingIOError:
            return
        except FerruleError as error:
            self.drop()
            self.result = error
        except OSError as error:
            self._hung_up(f" ({error.strerror or error})")

    def _step(self, answer: bytes | None) -> None:
        assert self._sock is not None
        while True:
            try:
                want: Any = next(self._steps) if answer is None else self._steps.send(answer)
            except StopIteration as end:
                self._loop.forget(self._sock)
                self.result = ControlChannel(self._sock, end.value, server=False)
                return
            if isinstance(want, int):
                self._want = want
                return
            self._sock.send(want)  # a few hundred bytes fit into an empty socket buffer
            answer = b""

    def _hung_up(self, how: str) -> None:
        """Handle a hang-up: a peer that has not said a word, such as a rank that ended before it took the call, may be
        there later."""
        if not self._heard:
            self.fail(f"it hung up{how}")
            return
        self.drop()
        self.result = RendezvousError(f"{self.call} left during the rendezvous{how}")

    def fail(self, problem: str) -> None:
        """It cannot be reached now."""
        self.drop()
        self.absent = True
        self.again = time.monotonic() + _RETRY_SECONDS
        self.problem = problem
        self.result = RendezvousError(f"cannot reach {self.call}: {problem}")

    def drop(self) -> None:
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None


def bind(sock: socket.socket, source: str, interface: str) -> None:
    """Let a socket use this address and interface only."""
    bind_device(sock, interface)
    if source:
        sock.bind(resolve(source, 0, interface)[0][1])


def bind_device(sock: socket.socket, interface: str) -> None:
    """Keep a socket's packets on an interface, where the system allows it; its address keeps most of them there too."""
    if interface and hasattr(socket, "SO_BINDTODEVICE"):
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        except PermissionError:  # before Linux 5.7 only root may
            return
