"""Connections during the rendezvous: authenticated, exact reads, every wait with a deadline."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import time
from typing import Any

from ferrule.errors import AuthError, FabricTimeout, RendezvousError
from ferrule.fabric.handshake import MAC_BYTES, Identity, Session, Steps, connect_steps

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 1 << 20
_RETRY_SECONDS = 0.05


class Deadline:
    """A point in time that everything of one rendezvous shares."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left == 0.0


class Link:
    """Small messages (JSON objects) to one rank over an authenticated socket, each under a MAC with its number.

    Reads take exactly the message and never a byte more: afterwards the socket carries the data of the group.
    """

    def __init__(self, sock: socket.socket, session: Session, *, server: bool) -> None:
        self.socket = sock
        self.peer = session.identity.rank if server else session.identity.target
        self._key = session.key
        self._send_label, self._receive_label = (b"server", b"client") if server else (b"client", b"server")
        self._sent = 0
        self._received = 0

    def send(self, message: dict[str, Any], deadline: Deadline) -> None:
        payload = json.dumps(message).encode()
        frame = _LENGTH.pack(len(payload)) + payload + self._mac(self._send_label, self._sent, payload)
        self._sent += 1
        self.socket.settimeout(max(deadline.left, 1e-3))
        try:
            self.socket.sendall(frame)
        except OSError as error:
            raise RendezvousError(f"rank {self.peer} left during the rendezvous ({error})") from error

    def receive(self, deadline: Deadline) -> dict[str, Any]:
        where = f"rank {self.peer}"
        (length,) = _LENGTH.unpack(read_exactly(self.socket, _LENGTH.size, deadline, where))
        if length > _MAX_MESSAGE:
            raise AuthError(f"{where} announced a message of {length} bytes, which none of ours has")
        payload = read_exactly(self.socket, length, deadline, where)
        mac = read_exactly(self.socket, MAC_BYTES, deadline, where)
        if not hmac.compare_digest(mac, self._mac(self._receive_label, self._received, payload)):
            raise AuthError(f"a message from {where} was altered on its way")
        self._received += 1
        message: dict[str, Any] = json.loads(payload)
        if "abort" in message:
            raise RendezvousError(f"{where} gave up: {message['abort']}")
        return message

    def _mac(self, label: bytes, number: int, payload: bytes) -> bytes:
        return hmac.new(self._key, label + number.to_bytes(8, "little") + payload, hashlib.sha256).digest()


def read_exactly(sock: socket.socket, count: int, deadline: Deadline, where: str) -> bytes:
    data = bytearray()
    while len(data) < count:
        if deadline.passed:
            raise FabricTimeout(f"{where} did not answer within {deadline.seconds:g} s of the rendezvous")
        sock.settimeout(deadline.left)
        try:
            piece = sock.recv(count - len(data))
        except TimeoutError:
            continue
        except OSError as error:
            raise RendezvousError(f"{where} left during the rendezvous ({error})") from error
        if not piece:
            raise RendezvousError(f"{where} left during the rendezvous")
        data += piece
    return bytes(data)


def connect(address: tuple[str, int], key: bytes, identity: Identity, deadline: Deadline) -> Link:
    """Connect to a rank that listens, or soon will, and shake hands with it."""
    where = f"rank {identity.target} at {address[0]}:{address[1]}"
    sock = _connect_socket(address, where, deadline)
    try:
        session = _drive(sock, connect_steps(key, identity), deadline, where)
    except BaseException:
        sock.close()
        raise
    return Link(sock, session, server=False)


def _connect_socket(address: tuple[str, int], where: str, deadline: Deadline) -> socket.socket:
    problem = "no answer"
    while not deadline.passed:
        try:
            sock = socket.create_connection(address, timeout=max(deadline.left, 1e-3))
        except OSError as error:
            # Not there yet, or its host is still starting: a name or a route may appear, too.
            problem = error.strerror or str(error)
            time.sleep(min(_RETRY_SECONDS, deadline.left))
            continue
        if sock.getsockname() == sock.getpeername():
            # TCP lets a socket connect to itself when it drew the very port that nobody listens on yet.
            sock.close()
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise RendezvousError(f"cannot reach {where} within {deadline.seconds:g} s: {problem}; is it started?")


def _drive(sock: socket.socket, steps: Steps, deadline: Deadline, where: str) -> Session:
    answer: bytes | None = None
    while True:
        try:
            want = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            session: Session = end.value
            return session
        if isinstance(want, int):
            answer = read_exactly(sock, want, deadline, where)
        else:
            sock.settimeout(max(deadline.left, 1e-3))
            try:
                sock.sendall(want)
            except OSError as error:
                raise RendezvousError(f"{where} left during the rendezvous ({error})") from error
            answer = b""
