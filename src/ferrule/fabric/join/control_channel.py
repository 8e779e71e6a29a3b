"""Encrypted messages while a group is being made: exact reads, every wait with a deadline."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import DecodeError, Struct, ValidationError, json

from ferrule.errors import AuthError, FabricTimeout, RendezvousError
from ferrule.fabric.join.handshake import Session
from ferrule.secure.aead import TAG_BYTES, Sealer

_HEAD = struct.Struct("<I")
"""Bytes of the payload, and `_ABORT` if that is an `Abort`. In the clear, but under the tag."""
_ABORT = 1 << 31
_MAX_MESSAGE = 1 << 22
_ALARM_SECONDS = 0.1

T = TypeVar("T")


class Abort(Struct, frozen=True, tag=True):
    """The other end gave up, for this reason. Comes instead of any message."""

    abort: str


class Deadline:
    """A point in time that everything of one rendezvous shares. ``alarm`` raises what ends all waiting before it."""

    def __init__(self, seconds: float, alarm: Callable[[], None] | None = None, *, end: float | None = None) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds if end is None else end
        self._alarm = alarm

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left == 0.0

    @property
    def pause(self) -> float:
        """Seconds to sleep before the next `check`."""
        return self.left if self._alarm is None else min(self.left, _ALARM_SECONDS)

    def watched(self, alarm: Callable[[], None]) -> Deadline:
        """The same one with an alarm."""
        return Deadline(self.seconds, alarm, end=self._end)

    def extended(self, seconds: float) -> Deadline:
        """One that is so much later."""
        return Deadline(self.seconds + seconds, self._alarm, end=self._end + seconds)

    def check(self) -> None:
        """Raise what has happened meanwhile that ends all waiting."""
        if self._alarm is not None:
            self._alarm()


class ControlChannel:
    """Small messages (structs, as JSON) to one rank over an authenticated socket, each encrypted under its number.

    Reads take exactly the message and never a byte more: afterwards the socket carries the data of the group.
    ``here``, ``there``: the addresses of both ends.
    """

    def __init__(self, sock: socket.socket, session: Session, *, server: bool) -> None:
        self.here, self.there = _place(sock.getsockname), _place(sock.getpeername)
        self.socket = _encrypted(sock, session.key, server=server) if session.encrypt else sock
        self.session = session
        self.identity = session.identity
        self.peer = session.identity.rank if server else session.identity.target
        ours, theirs = ("server", "client") if server else ("client", "server")
        self._sealer, self._opener = (Sealer(session.key, f"control {end}") for end in (ours, theirs))
        self.gave_up = False  # so it said

    def send(self, message: object, deadline: Deadline) -> None:
        payload = json.encode(message)
        head = _HEAD.pack(len(payload) | (_ABORT if isinstance(message, Abort) else 0))
        self.socket.settimeout(max(deadline.left, 1e-3))
        try:
            self.socket.sendall(head + self._sealer.seal(payload, head))
        except OSError as error:
            raise RendezvousError(f"rank {self.peer} left during the rendezvous ({error})") from error

    def receive(self, kind: type[T], deadline: Deadline) -> T:
        """The next message. Raises `RendezvousError`, also where it is of another kind, and `AuthError`."""
        where = f"rank {self.peer}"
        head = read_exactly(self.socket, _HEAD.size, deadline, where)
        (word,) = _HEAD.unpack(head)
        length, abort = word & ~_ABORT, bool(word & _ABORT)
        if length > _MAX_MESSAGE:
            raise AuthError(f"{where} announced a message of {length} bytes, which none of ours has")
        payload = self._opener.open(read_exactly(self.socket, length + TAG_BYTES, deadline, where), head)
        if payload is None:
            raise AuthError(f"a message from {where} was altered on its way")
        try:
            if abort:
                self.gave_up = True
                raise RendezvousError(f"{where} gave up: {json.decode(payload, type=Abort).abort}")
            return json.decode(payload, type=kind)
        except (DecodeError, ValidationError) as error:
            raise RendezvousError(
                f"{where} sent something else than {kind.__name__}, which was due: {error}"
            ) from error

    @property
    def over(self) -> bool:
        """Whether the other end is gone, or says next that it gave up."""
        head = _peek(self.socket, _HEAD.size)
        return head == b"" or (head is not None and len(head) == _HEAD.size and bool(_HEAD.unpack(head)[0] & _ABORT))


def _encrypted(sock: socket.socket, key: bytes, *, server: bool) -> socket.socket:
    from ferrule.secure.cable import encrypted  # few jobs need it

    return encrypted(sock, key, server=server)


def _place(name: Callable[[], object]) -> tuple[str, int]:
    """An address of a socket; empty for a Unix socket, and one that has just broken."""
    try:
        found = name()
    except OSError:
        found = None
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else ("", 0)


def left(sock: socket.socket) -> bool:
    """Whether the other end is gone and has left nothing to receive."""
    return _peek(sock) == b""


def _peek(sock: socket.socket, count: int = 1) -> bytes | None:
    """Next bytes, up to ``count``, without taking them; None: nothing yet, empty: the other end is gone."""
    # With a timeout Python would wait that long before it asks the kernel not to wait.
    sock.setblocking(False)
    try:
        return sock.recv(count, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def read_exactly(sock: socket.socket, count: int, deadline: Deadline, where: str) -> bytes:
    data = bytearray()
    while len(data) < count:
        deadline.check()
        if deadline.passed:
            raise FabricTimeout(f"{where} did not answer within {deadline.seconds:g} s of the rendezvous")
        sock.settimeout(max(deadline.pause, 1e-3))
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
