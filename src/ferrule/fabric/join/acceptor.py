"""Let ranks in, and nobody else: the one place where a process listens."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from ferrule.errors import AuthError, RendezvousError
from ferrule.fabric.join.control_channel import Link, left
from ferrule.fabric.join.dial import bind_device
from ferrule.fabric.join.handshake import Identity, Refusal, Steps, Stranger, accept_steps
from ferrule.fabric.join.loop import READ, Loop
from ferrule.fabric.join.pending import Lobby

_log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 5.0
_MAX_PENDING = 256
"""More than the ranks of one job that come at the same time."""
_UNDECIDED_SECONDS = 10.0
"""How long a rank may be ahead of this one: it wants a group of which this rank has not heard yet."""
_MAX_ENDED = 4096
_FAREWELL_SECONDS, _FAREWELL_PAUSE_SECONDS = 0.3, 0.02
_NO_FILES_SECONDS = 0.05
"""A process that may open no more files cannot take the next connection, which goes on waiting."""


@dataclass
class _Visitor:
    """A connection whose handshake is under way. ``who``: set when it proved itself."""

    sock: socket.socket
    name: str
    steps: Steps
    until: float
    want: int = 0
    data: bytearray = field(default_factory=bytearray)
    who: Identity | None = None


class Door:
    """Listens as long as the groups of a job live, and brings whoever proves to be a rank to its group's `Lobby`.

    During the rendezvous whoever waits drives its ``loop``; from `start` on a thread of its own does, so a rank is
    reachable whatever its program does. Strangers cannot get in the way: they have a few seconds and a few hundred
    bytes, and only so many of them are heard at a time.
    """

    def __init__(self, key: bytes, rank: int, listeners: Iterable[socket.socket]) -> None:
        self._key = key
        self._rank = rank
        self._lock = threading.Lock()
        self._lobbies: dict[bytes, Lobby] = {}
        self._ended: dict[bytes, str] = {}
        self._devices: dict[str, str] = {}
        self._listeners: set[socket.socket] = set()
        self._visitors: dict[socket.socket, _Visitor] = {}
        self._undecided: list[_Visitor] = []
        self._orders: deque[Callable[[], None]] = deque()
        self._closing = False
        self._farewell: str | None = None
        self._loop = Loop()
        self._loop.add_chore(self._look_around)
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._loop.watch(self._wake, READ, self._woken)
        self._thread: threading.Thread | None = None
        self.listen(listeners)

    @property
    def loop(self) -> Loop | None:
        """What whoever waits has to drive; None once a thread does."""
        return None if self._thread is not None else self._loop

    @property
    def handler_loop(self) -> Loop:
        """For the handlers of lobbies, which run in the thread that drives it."""
        return self._loop

    def start(self) -> None:
        """From now on a thread of its own lets ranks in."""
        self._thread = threading.Thread(target=self._run, name="ferrule door", daemon=True)
        self._thread.start()

    def listen(self, listeners: Iterable[socket.socket], devices: dict[str, str] | None = None) -> None:
        """Listen on these sockets too. ``devices``: the interface that has an address, for what comes in there."""
        made = list(listeners)
        with self._lock:
            self._devices |= devices or {}
            self._orders.append(lambda: self._add_listeners(made))
        self._ring()

    def open(self, lobby: Lobby) -> None:
        """From now on those who want this lobby's group are let in."""
        lobby.loop = self.loop
        with self._lock:
            self._lobbies[lobby.epoch] = lobby
        self._ring()

    def shut(self, lobby: Lobby, why: str) -> None:
        """Nobody is let in to this lobby any more; whoever comes is told why."""
        with self._lock:
            self._lobbies.pop(lobby.epoch, None)
            self._ended[lobby.epoch] = why
            while len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        lobby.settle()

    def turn_away(self, why: str) -> None:
        """Shut all lobbies, and stay for a moment to tell why to ranks that are just coming. Only before `start`."""
        self._farewell = why
        with self._lock:
            lobbies = list(self._lobbies.values())
        for lobby in lobbies:
            self.shut(lobby, why)
        end = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < end:
            busy = self._visitors or self._undecided
            if not self._loop.turn(_FAREWELL_PAUSE_SECONDS if busy else 0) and not (self._visitors or self._undecided):
                return

    def close(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        self._ring()
        if self._thread is None:
            self._end()
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._loop.turn()
        self._end()

    def _end(self) -> None:
        self._woken()
        for sock in [*self._listeners, *self._visitors, *(one.sock for one in self._undecided)]:
            sock.close()
        self._loop.close()
        with self._lock:
            self._wake.close()
            self._waker.close()

    def _ring(self) -> None:
        """Wake the thread. It may have ended, or have been rung more often than its bell holds."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._waker.fileno() >= 0:
                self._waker.send(b"\0")

    def _look_around(self) -> float | None:
        """Before every sleep: send away who took too long, and decide what could not be decided before."""
        now = time.monotonic()
        for visitor in [visitor for visitor in self._visitors.values() if visitor.until < now]:
            _log.info("%s did not prove itself in time", visitor.name)
            self._dismiss(visitor)
        if self._undecided:
            self._decide_again()
        untils = [one.until for one in (*self._visitors.values(), *self._undecided)]
        return min(untils) - now if untils else None

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        with self._lock:
            orders = list(self._orders)
            self._orders.clear()
        for order in orders:
            order()

    def _add_listeners(self, listeners: Iterable[socket.socket]) -> None:
        for sock in listeners:
            sock.setblocking(False)
            self._listeners.add(sock)
            self._loop.watch(sock, READ, partial(self._welcome, sock))

    def _decide_again(self) -> None:
        """Look once more at those who were ahead of this rank."""
        waiting, self._undecided = self._undecided, []
        for visitor in waiting:
            assert visitor.who is not None
            if left(visitor.sock):
                visitor.sock.close()
                continue
            decision = self._judge(visitor.who)
            if decision is None and visitor.until < time.monotonic():
                decision = Refusal(f"rank {visitor.who.rank} belongs to another group")
            if decision is None:
                self._undecided.append(visitor)
            else:
                self._advance(visitor, decision)

    def _welcome(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
            sock.setblocking(False)
            # Without this the last word of the handshake waits for the peer's delayed acknowledgement.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            here = str(sock.getsockname()[0]).partition("%")[0]
            if here in self._devices and str(address[0]).partition("%")[0] not in self._devices:
                bind_device(sock, self._devices[here])
        except OSError as error:
            _log.info("a connection ended before it was accepted: %s", error)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_NO_FILES_SECONDS)
            return
        steps = accept_steps(self._key, self._rank)
        visitor = _Visitor(sock, str(address[0]), steps, time.monotonic() + _HANDSHAKE_SECONDS)
        if len(self._visitors) >= _MAX_PENDING:
            # The one that has kept us waiting longest makes room: real ranks finish within milliseconds.
            self._dismiss(min(self._visitors.values(), key=lambda other: other.until))
        self._visitors[sock] = visitor
        self._loop.watch(sock, READ, partial(self._hear, visitor))
        self._advance(visitor, None)

    def _hear(self, visitor: _Visitor) -> None:
        try:
            piece = visitor.sock.recv(visitor.want - len(visitor.data))
        except BlockingIOError:
            return
        except OSError as error:
            _log.info("%s left: %s", visitor.name, error)
            piece = b""
        if not piece:
            self._dismiss(visitor)
            return
        visitor.data += piece
        if len(visitor.data) == visitor.want:
            answer = bytes(visitor.data)
            visitor.data.clear()
            self._advance(visitor, answer)

    def _advance(self, visitor: _Visitor, answer: bytes | Refusal | None) -> None:
        """Go on with the handshake until it needs more bytes, or a decision that cannot be made yet, or is over."""
        try:
            while True:
                want = next(visitor.steps) if answer is None else visitor.steps.send(answer)
                if isinstance(want, int):
                    visitor.want = want
                    return
                if isinstance(want, Identity):
                    visitor.who = want
                    self._release(visitor)
                    answer = self._judge(want)
                    if answer is None:
                        visitor.until = time.monotonic() + _UNDECIDED_SECONDS
                        self._undecided.append(visitor)
                        return
                    continue
                # A few hundred bytes always fit into an empty socket buffer; a stranger may break that, alone.
                visitor.sock.send(want)
                answer = b""
        except StopIteration as end:
            link = Link(visitor.sock, end.value, server=True)
            lobby = self._lobby(link.identity.epoch)
            if lobby is None:
                link.socket.close()
            else:
                lobby.admit(link)
        except Stranger:
            _log.info("%s is not let in", visitor.name)
            self._dismiss(visitor)
        except (AuthError, RendezvousError) as error:
            self._refuse(visitor, type(error)(f"{error} (connection from {visitor.name})"))
        except OSError as error:
            _log.info("%s left: %s", visitor.name, error)
            self._dismiss(visitor)

    def _lobby(self, epoch: bytes) -> Lobby | None:
        with self._lock:
            return self._lobbies.get(epoch)

    def _judge(self, who: Identity) -> bytes | Refusal | None:
        """Welcome, a refusal, or None: not known yet."""
        with self._lock:
            lobby, ended = self._lobbies.get(who.epoch), self._ended.get(who.epoch)
        if lobby is not None:
            return lobby.judge(who) or b""
        reason = ended if ended is not None else self._farewell
        return Refusal(reason) if reason is not None else None

    def _refuse(self, visitor: _Visitor, error: AuthError | RendezvousError) -> None:
        _log.warning("%s", error)
        with self._lock:
            lobbies = list(self._lobbies.values())
        for lobby in lobbies:
            lobby.refused(error, proved=visitor.who is not None)
        self._dismiss(visitor)

    def _release(self, visitor: _Visitor) -> None:
        """It is no stranger any more: it does not count as one, and nobody listens to it for now."""
        if self._visitors.pop(visitor.sock, None) is not None:
            self._loop.forget(visitor.sock)

    def _dismiss(self, visitor: _Visitor) -> None:
        self._release(visitor)
        visitor.sock.close()
