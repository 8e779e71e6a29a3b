"""The acceptor: the one place where a rank listens, with the server's side of the handshake."""

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
from ferrule.fabric.join.control_channel import ControlChannel, left
from ferrule.fabric.join.dial import bind_device
from ferrule.fabric.join.handshake import Identity, Refusal, Steps, accept_steps
from ferrule.fabric.join.loop import READ, Loop
from ferrule.fabric.join.pending import PendingPeers
from ferrule.secure import Stranger

_log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 5.0
_MAX_HANDSHAKES = 256
"""More than the ranks of one job that come at the same time."""
_UNDECIDED_SECONDS = 10.0
"""Seconds that a rank may be ahead of this one: it wants a group of which this rank has not heard yet."""
_MAX_ENDED = 4096
_CLOSING_SECONDS, _CLOSING_PAUSE_SECONDS = 0.3, 0.02
_NO_FILES_SECONDS = 0.05
"""A process that may open no more files cannot take the next connection, which goes on waiting."""


@dataclass
class _Incoming:
    """A connection whose handshake is under way. ``who``: set when it proved itself."""

    sock: socket.socket
    name: str
    steps: Steps
    until: float
    want: int = 0
    data: bytearray = field(default_factory=bytearray)
    who: Identity | None = None


class Acceptor:
    """Listens as long as the groups of a job live, and hands authenticated connections to their group's `PendingPeers`.

    During the rendezvous the thread that waits drives its ``loop``; from `start` on a thread of its own does, so a rank
    is reachable whatever its program does. Connections that have not proved themselves cannot block it: each has a few
    seconds and a few hundred bytes, and their number is limited.
    """

    def __init__(self, key: bytes, rank: int, listeners: Iterable[socket.socket], *, encrypt: bool = False) -> None:
        self._key, self._encrypt = key, encrypt
        self._rank = rank
        self._lock = threading.Lock()
        self._by_epoch: dict[bytes, PendingPeers] = {}
        self._ended: dict[bytes, str] = {}
        self._devices: dict[str, str] = {}
        self._listeners: set[socket.socket] = set()
        self._handshakes: dict[socket.socket, _Incoming] = {}
        self._undecided: list[_Incoming] = []
        self._orders: deque[Callable[[], None]] = deque()
        self._closing = False
        self._closing_reason: str | None = None
        self._loop = Loop()
        self._loop.add_chore(self._before_sleep)
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._loop.watch(self._wake, READ, self._run_orders)
        self._thread: threading.Thread | None = None
        self.listen(listeners)

    @property
    def loop(self) -> Loop | None:
        """Event loop that the waiting thread has to drive; None once the acceptor has its own."""
        return None if self._thread is not None else self._loop

    @property
    def handler_loop(self) -> Loop:
        """For handlers, which run in the thread that drives it."""
        return self._loop

    def start(self) -> None:
        """From now on a thread of its own lets ranks in."""
        self._thread = threading.Thread(target=self._run, name="ferrule acceptor", daemon=True)
        self._thread.start()

    def listen(self, listeners: Iterable[socket.socket], devices: dict[str, str] | None = None) -> None:
        """Listen on these sockets too. ``devices``: the interface that has an address, for what comes in there."""
        made = list(listeners)
        with self._lock:
            self._devices |= devices or {}
            self._orders.append(lambda: self._add_listeners(made))
        self._wake_thread()

    def open(self, pending: PendingPeers) -> None:
        """Accept connections to the group of ``pending`` from now on."""
        pending.loop = self.loop
        with self._lock:
            self._by_epoch[pending.epoch] = pending
        self._wake_thread()

    def shut(self, pending: PendingPeers, why: str) -> None:
        """Refuse connections to this group from now on, with the reason."""
        with self._lock:
            self._by_epoch.pop(pending.epoch, None)
            self._ended[pending.epoch] = why
            while len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        pending.settle()

    def turn_away(self, why: str) -> None:
        """Shut all groups, and tell ranks that arrive within a moment why. Only before `start`."""
        self._closing_reason = why
        with self._lock:
            groups = list(self._by_epoch.values())
        for pending in groups:
            self.shut(pending, why)
        end = time.monotonic() + _CLOSING_SECONDS
        while time.monotonic() < end:
            busy = self._handshakes or self._undecided
            if not self._loop.turn(_CLOSING_PAUSE_SECONDS if busy else 0) and not (self._handshakes or self._undecided):
                return

    def close(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        self._wake_thread()
        if self._thread is None:
            self._end()
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._loop.turn()
        self._end()

    def _end(self) -> None:
        self._run_orders()
        for sock in [*self._listeners, *self._handshakes, *(one.sock for one in self._undecided)]:
            sock.close()
        self._loop.close()
        with self._lock:
            self._wake.close()
            self._waker.close()

    def _wake_thread(self) -> None:
        """Wake the thread. It may have ended, or have more bytes than its pipe holds."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._waker.fileno() >= 0:
                self._waker.send(b"\0")

    def _before_sleep(self) -> float | None:
        """Before every sleep: drop handshakes that took too long, and decide what could not be decided before."""
        now = time.monotonic()
        for incoming in [incoming for incoming in self._handshakes.values() if incoming.until < now]:
            _log.info("%s did not prove itself in time", incoming.name)
            self._drop(incoming)
        if self._undecided:
            self._decide_again()
        untils = [one.until for one in (*self._handshakes.values(), *self._undecided)]
        return min(untils) - now if untils else None

    def _run_orders(self) -> None:
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
            self._loop.watch(sock, READ, partial(self._accept, sock))

    def _decide_again(self) -> None:
        """Once more for connections that were ahead of this rank."""
        waiting, self._undecided = self._undecided, []
        for incoming in waiting:
            assert incoming.who is not None
            if left(incoming.sock):
                incoming.sock.close()
                continue
            decision = self._decide(incoming.who)
            if decision is None and incoming.until < time.monotonic():
                decision = Refusal(f"rank {incoming.who.rank} belongs to another group")
            if decision is None:
                self._undecided.append(incoming)
            else:
                self._advance(incoming, decision)

    def _accept(self, listener: socket.socket) -> None:
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
        steps = accept_steps(self._key, self._rank, encrypt=self._encrypt)
        incoming = _Incoming(sock, str(address[0]), steps, time.monotonic() + _HANDSHAKE_SECONDS)
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            # The one that has kept us waiting longest makes room: real ranks finish within milliseconds.
            self._drop(min(self._handshakes.values(), key=lambda other: other.until))
        self._handshakes[sock] = incoming
        self._loop.watch(sock, READ, partial(self._read, incoming))
        self._advance(incoming, None)

    def _read(self, incoming: _Incoming) -> None:
        try:
            piece = incoming.sock.recv(incoming.want - len(incoming.data))
        except BlockingIOError:
            return
        except OSError as error:
            _log.info("%s left: %s", incoming.name, error)
            piece = b""
        if not piece:
            self._drop(incoming)
            return
        incoming.data += piece
        if len(incoming.data) == incoming.want:
            answer = bytes(incoming.data)
            incoming.data.clear()
            self._advance(incoming, answer)

    def _advance(self, incoming: _Incoming, answer: bytes | Refusal | None) -> None:
        """Go on with the handshake until it needs more bytes, or a decision that cannot be made yet, or is over."""
        try:
            while True:
                want = next(incoming.steps) if answer is None else incoming.steps.send(answer)
                if isinstance(want, int):
                    incoming.want = want
                    return
                if isinstance(want, Identity):
                    incoming.who = want
                    self._release(incoming)
                    answer = self._decide(want)
                    if answer is None:
                        incoming.until = time.monotonic() + _UNDECIDED_SECONDS
                        self._undecided.append(incoming)
                        return
                    continue
                # A few hundred bytes always fit into an empty socket buffer, unless a hostile peer shrinks its own.
                incoming.sock.send(want)
                answer = b""
        except StopIteration as end:
            channel = ControlChannel(incoming.sock, end.value, server=True)
            with self._lock:
                pending = self._by_epoch.get(channel.identity.epoch)
            if pending is None:
                channel.socket.close()
            else:
                pending.admit(channel)
        except Stranger:
            _log.info("%s is not let in", incoming.name)
            self._drop(incoming)
        except (AuthError, RendezvousError) as error:
            self._refuse(incoming, type(error)(f"{error} (connection from {incoming.name})"))
        except OSError as error:
            _log.info("%s left: %s", incoming.name, error)
            self._drop(incoming)

    def _decide(self, who: Identity) -> bytes | Refusal | None:
        """Welcome, a refusal, or None: not known yet."""
        with self._lock:
            pending, ended = self._by_epoch.get(who.epoch), self._ended.get(who.epoch)
        if pending is not None:
            return pending.refusal(who) or b""
        reason = ended if ended is not None else self._closing_reason
        return Refusal(reason) if reason is not None else None

    def _refuse(self, incoming: _Incoming, error: AuthError | RendezvousError) -> None:
        _log.warning("%s", error)
        with self._lock:
            groups = list(self._by_epoch.values())
        for pending in groups:
            pending.refused(error, proved=incoming.who is not None)
        self._drop(incoming)

    def _release(self, incoming: _Incoming) -> None:
        """Its handshake is over, or waits for a decision: stop reading from it."""
        if self._handshakes.pop(incoming.sock, None) is not None:
            self._loop.forget(incoming.sock)

    def _drop(self, incoming: _Incoming) -> None:
        self._release(incoming)
        incoming.sock.close()
