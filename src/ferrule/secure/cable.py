"""Encrypt connections of a program that knows only plain sockets, such as the native core.

`encrypted` hands a connection to a process of its own, ``python -m ferrule.secure.cable DESCRIPTOR``, and gives a plain
socket for it. Nothing of Python in the program then stands between the core and the cable. Both ends prove to each
other in TLS, by a key that only they have, that nobody stands between them.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from ferrule.errors import AuthError
from ferrule.secure.handshake import (
    Exchange,
    Proof,
    Reply,
    Status,
    Stranger,
    Wire,
    WrongKey,
    challenge_steps,
    client_steps,
    hear_hello,
)
from ferrule.secure.keys import KEY_BYTES

_log = logging.getLogger(__name__)

WIRE = Wire(b"FERRULET", number=1, label=b"ferrule cable ", fields="", text_bytes=8)
_ORDER_BYTES = 1 + KEY_BYTES
_CHUNK = 1 << 18
_MOST_WAITING = 1 << 20
"""Bytes for one side; the other one is not read until they have gone."""
_HANDSHAKE_SECONDS = 20.0
_FINISH_SECONDS = 2.0
"""For last words, when the program has ended."""


def encrypted(cable: socket.socket, key: bytes, *, server: bool) -> socket.socket:
    """A plain socket for what goes over ``cable`` encrypted; that is closed here. ``key``: of this connection alone.

    What goes wrong on the way, also that the other end does not know the key, is the end of the socket. Raises
    `OSError` where no process can be started.
    """
    inner, outer = socket.socketpair()
    with cable, inner:
        _process().take(cable, inner, key, server)
    return outer


class _Process:
    """The process that encrypts for this one. It ends a moment after this one, when all last words are sent."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            # Not tied to this process, which it outlives to send what is left.
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "ferrule.secure.cable", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def take(self, cable: socket.socket, inner: socket.socket, key: bytes, server: bool) -> None:
        with self._lock:
            socket.send_fds(self._orders, [bytes([server]) + key], [cable.fileno(), inner.fileno()])


@cache
def _process_of(pid: int) -> _Process:
    return _Process()


def _process() -> _Process:
    return _process_of(os.getpid())  # a fork has one of its own


class _Side:
    """One of the two sockets. ``waiting``: what has to be sent there; ``ended``: nothing more comes from there."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting = bytearray()
        self.ended = self.shut = False

    def readable(self, other: _Side) -> bool:
        """Whether what comes from here can be taken, which goes on to ``other``."""
        return not self.ended and len(other.waiting) < _MOST_WAITING

    def events(self, other: _Side) -> int:
        return (select.POLLIN if self.readable(other) else 0) | (select.POLLOUT if self.waiting else 0)

    def read(self) -> bytes:
        try:
            data = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return b""
        self.ended = not data
        return data

    def flush(self, source: _Side) -> None:
        """Send what is there; after the last of it, that no more comes from ``source``."""
        if self.waiting:
            with suppress(BlockingIOError):
                del self.waiting[: self.sock.send(self.waiting)]
        if source.ended and not self.waiting and not self.shut:
            self.shut = True
            self.sock.shutdown(socket.SHUT_WR)


class _Carrier(threading.Thread):
    """Between one connection and the program's socket, in both directions; either may end before the other."""

    def __init__(self, cable: socket.socket, inner: socket.socket, key: bytes, *, server: bool) -> None:
        super().__init__(daemon=True)
        self._cable, self._inner, self._key, self._server = cable, inner, key, server

    def run(self) -> None:
        with self._cable, self._inner:
            try:
                self._carry()
            except OSError as error:
                _log.info("an encrypted connection ended: %s", error)
            except (AuthError, Stranger, WrongKey) as error:
                _log.warning("an encrypted connection was given up: %s", error or "the other end has another key")

    def _carry(self) -> None:
        from ferrule.secure.tls import Tls

        self._cable.settimeout(_HANDSHAKE_SECONDS)
        tls = _drive(_server_steps(self._key) if self._server else _client_steps(self._key), self._cable).line
        assert isinstance(tls, Tls)
        cable, inner = _Side(self._cable), _Side(self._inner)
        for side in (cable, inner):
            side.sock.setblocking(False)
        while not (cable.shut and (inner.shut or cable.ended)):
            _wait(cable, inner)
            if cable.readable(inner) and (data := cable.read()):
                inner.waiting += tls.decrypt(data)
            if inner.readable(cable) and (data := inner.read()):
                cable.waiting += tls.encrypt(data)
            cable.flush(inner)
            try:
                inner.flush(cable)
            except OSError:  # the program has closed its end; what it said last still goes out
                inner.waiting.clear()


def _wait(cable: _Side, inner: _Side) -> None:
    poller = select.poll()
    for side, other in ((cable, inner), (inner, cable)):
        if events := side.events(other):
            poller.register(side.sock, events)
    poller.poll()


def _client_steps(key: bytes) -> Exchange[Proof]:
    from ferrule.secure.tls import client_opening

    def check(reply: Reply) -> None:
        if not reply.ours or reply.status != Status.WELCOME:
            raise WrongKey

    return client_steps(WIRE, key, WIRE.pack_hello(0), check, client_opening)


def _server_steps(key: bytes) -> Exchange[Proof]:
    from ferrule.secure.tls import server_opening

    proof = yield from challenge_steps(WIRE, key, (yield from hear_hello(WIRE)), server_opening())
    yield from proof.welcome()
    return proof


def _drive(steps: Exchange[Proof], sock: socket.socket) -> Proof:
    """Take the steps of a handshake over a socket with a timeout. Raises what they raise, and `OSError`."""
    answer: bytes | None = None
    while True:
        try:
            want = steps.send(answer)
        except StopIteration as end:
            proof: Proof = end.value
            return proof
        answer = b""
        if isinstance(want, int):
            while len(answer) < want:
                piece = sock.recv(want - len(answer))
                if not piece:
                    raise ConnectionError("the other end hung up before it had proved itself")
                answer += piece
        else:
            sock.sendall(want)


def main(arguments: Sequence[str]) -> int:
    """Argument: the descriptor on which connections come; its end is the program's."""
    logging.basicConfig(format="ferrule: %(message)s", level=logging.WARNING)
    carriers: list[_Carrier] = []
    with socket.socket(fileno=int(arguments[0])) as orders:
        while True:
            order, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 2)
            if not order:
                break
            cable, inner = (socket.socket(fileno=fd) for fd in fds)
            carriers = [each for each in carriers if each.is_alive()]
            carriers.append(_Carrier(cable, inner, order[1:], server=bool(order[0])))
            carriers[-1].start()
    deadline = time.monotonic() + _FINISH_SECONDS
    for carrier in carriers:
        carrier.join(max(0.0, deadline - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
