"""Encrypt connections of a program that knows only plain sockets, such as the native core.

`encrypted` hands a connection to a process of its own, ``python -m ferrule.secure.cable DESCRIPTOR``, and gives a plain
socket for it. Nothing of Python in the program then stands between the core and the cable. Both ends prove to each
other in TLS, by a key that only they have, that no third party is between them.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

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
from ferrule.secure.token import KEY_BYTES

if TYPE_CHECKING:
    from ferrule.secure.tls import Tls

_log = logging.getLogger(__name__)

WIRE = Wire(b"FERRULET", number=1, label=b"ferrule cable ", fields="", text_bytes=8)
_ORDER_BYTES = 1 + KEY_BYTES
_CHUNK = 1 << 18
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
        _process_of(os.getpid()).take(cable, inner, key, server)
    return outer


class _Process:
    """The process that encrypts for this one. It ends a moment after this one, when all last words are sent."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            # Not `process.start`: it outlives this process to send what is left, and has a session of its own, so that
            # no signal to this one's group or terminal ends it before.
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
    """A fork has one of its own."""
    return _Process()


class _Carrier(threading.Thread):
    """Between one connection and the program's socket, in both directions; either may end before the other."""

    def __init__(self, cable: socket.socket, inner: socket.socket, key: bytes, *, server: bool) -> None:
        super().__init__(daemon=True)
        self._cable, self._inner, self._key, self._server = cable, inner, key, server
        self._using_tls = threading.Lock()

    def run(self) -> None:
        with self._cable, self._inner:
            try:
                tls = self._open()
                outwards = threading.Thread(target=self._outwards, args=(tls,), daemon=True)
                outwards.start()
                try:
                    self._inwards(tls)
                except BaseException:
                    _shut(self._inner, socket.SHUT_RDWR)  # so that the other direction ends, too
                    raise
                finally:
                    outwards.join()
            except OSError as error:
                _log.info("an encrypted connection ended: %s", error)
            except (AuthError, Stranger, WrongKey) as error:
                _log.warning("an encrypted connection was given up: %s", error or "the other end has another key")

    def _open(self) -> Tls:
        from ferrule.secure.tls import Tls

        self._cable.settimeout(_HANDSHAKE_SECONDS)
        tls = _drive(_server_steps(self._key) if self._server else _client_steps(self._key), self._cable).line
        assert isinstance(tls, Tls)
        self._cable.settimeout(None)
        return tls

    def _inwards(self, tls: Tls) -> None:
        while data := self._cable.recv(_CHUNK):
            with self._using_tls:
                plain = tls.decrypt(data)
            # Where the program has closed its end all is read still: a reset would take its last words with it.
            with suppress(OSError):
                self._inner.sendall(plain)
        _shut(self._inner, socket.SHUT_WR)

    def _outwards(self, tls: Tls) -> None:
        try:
            while data := self._inner.recv(_CHUNK):
                with self._using_tls:
                    encrypted = tls.encrypt(data)
                self._cable.sendall(encrypted)
            _shut(self._cable, socket.SHUT_WR)
        except OSError as error:
            _log.info("an encrypted connection ended: %s", error)
            _shut(self._cable, socket.SHUT_RDWR)


def _shut(sock: socket.socket, how: int) -> None:
    with suppress(OSError):  # it has ended already
        sock.shutdown(how)


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
