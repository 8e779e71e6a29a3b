"""Take connections from ranks, and from whoever else finds the port, without letting anybody get in the way."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ferrule.errors import AuthError, FerruleError, RendezvousError
from ferrule.fabric.handshake import Identity, Steps, Stranger, accept_steps
from ferrule.fabric.link import Deadline, Link

_log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 5.0
_MAX_PENDING = 64
_GRACE_SECONDS = 0.8
"""How long a rank that was refused may still turn up properly before the refusal becomes an error: somebody else
may have used its name."""
_REMIND_SECONDS = 10.0


@dataclass
class _Visitor:
    """A connection whose handshake is under way."""

    sock: socket.socket
    name: str
    steps: Steps
    until: float
    want: int = 0
    data: bytearray = field(default_factory=bytearray)


class Acceptor:
    """Waits on ``listener`` until every rank of ``missing`` has connected and proved itself.

    ``watch`` maps sockets of ranks that are already there to what to call when they say something meanwhile,
    which can only be that they gave up or died.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        expected: Identity,
        missing: Iterable[int],
        watch: dict[socket.socket, Callable[[], None]] | None = None,
    ) -> None:
        self._listener = listener
        self._key = key
        self._expected = expected
        self._missing = set(missing)
        self._watch = dict(watch or {})
        self._links: dict[int, Link] = {}
        self._visitors: dict[socket.socket, _Visitor] = {}
        self._refused: tuple[float, FerruleError] | None = None
        self._selector = selectors.DefaultSelector()

    def run(self, deadline: Deadline) -> dict[int, Link]:
        """The link to every missing rank. Raises `RendezvousError`, `AuthError`."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        for sock in self._watch:
            self._selector.register(sock, selectors.EVENT_READ)
        remind = time.monotonic() + _REMIND_SECONDS
        try:
            while self._missing:
                self._step(deadline)
                if time.monotonic() > remind:
                    _log.warning("still waiting for rank %s", self._missing_text())
                    remind += _REMIND_SECONDS
        except BaseException:
            for link in self._links.values():
                link.socket.close()
            raise
        finally:
            for visitor in self._visitors.values():
                visitor.sock.close()
            self._selector.close()
        return self._links

    def _step(self, deadline: Deadline) -> None:
        now = time.monotonic()
        if self._refused is not None and now > self._refused[0] + _GRACE_SECONDS:
            raise self._refused[1]
        if deadline.passed:
            text = self._missing_text()
            verb = "is" if len(self._missing) == 1 else "are"
            raise RendezvousError(f"rank {text} {verb} missing after {deadline.seconds:g} s; start every rank")
        for visitor in [visitor for visitor in self._visitors.values() if visitor.until < now]:
            _log.info("%s did not prove itself in time", visitor.name)
            self._dismiss(visitor)
        for selected, _ in self._selector.select(min(0.2, deadline.left)):
            sock = selected.fileobj
            assert isinstance(sock, socket.socket)
            if sock is self._listener:
                self._welcome()
            elif sock in self._watch:
                self._watch[sock]()
            elif sock in self._visitors:
                self._listen_to(self._visitors[sock])

    def _missing_text(self) -> str:
        return ", ".join(str(rank) for rank in sorted(self._missing))

    def _welcome(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            _log.info("a connection ended before it was accepted: %s", error)
            return
        sock.setblocking(False)
        steps = accept_steps(self._key, self._expected)
        visitor = _Visitor(sock, str(address[0]), steps, time.monotonic() + _HANDSHAKE_SECONDS)
        if len(self._visitors) >= _MAX_PENDING:
            # The one that has kept us waiting longest makes room: real ranks finish within milliseconds.
            self._dismiss(min(self._visitors.values(), key=lambda other: other.until))
        self._visitors[sock] = visitor
        self._selector.register(sock, selectors.EVENT_READ)
        self._advance(visitor, None)

    def _listen_to(self, visitor: _Visitor) -> None:
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

    def _advance(self, visitor: _Visitor, answer: bytes | None) -> None:
        """Go on with the handshake until it needs more bytes or is over."""
        try:
            while True:
                want = next(visitor.steps) if answer is None else visitor.steps.send(answer)
                if isinstance(want, int):
                    visitor.want = want
                    return
                # A few hundred bytes always fit into an empty socket buffer; a stranger may break that, alone.
                visitor.sock.send(want)
                answer = b""
        except StopIteration as end:
            self._selector.unregister(visitor.sock)
            del self._visitors[visitor.sock]
            self._admit(Link(visitor.sock, end.value, server=True))
        except Stranger:
            _log.info("%s does not speak Ferrule's protocol", visitor.name)
            self._dismiss(visitor)
        except AuthError as error:
            self._refuse(visitor, AuthError(f"{error} (connection from {visitor.name})"))
        except RendezvousError as error:
            self._refuse(visitor, RendezvousError(f"{error} (connection from {visitor.name})"))
        except OSError as error:
            _log.info("%s left: %s", visitor.name, error)
            self._dismiss(visitor)

    def _admit(self, link: Link) -> None:
        if link.peer not in self._missing:
            link.socket.close()
            raise RendezvousError(
                f"two processes claim to be rank {link.peer}; give every process its own FERRULE_RANK"
            )
        self._missing.remove(link.peer)
        self._links[link.peer] = link
        self._watch[link.socket] = lambda: self._check_left(link)
        self._selector.register(link.socket, selectors.EVENT_READ)

    def _check_left(self, link: Link) -> None:
        """A rank that is already in says something: fine, it will be read later, unless it is its end."""
        try:
            left = link.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return
        except OSError:
            left = True
        if left:
            raise RendezvousError(f"rank {link.peer} left during the rendezvous")
        self._selector.unregister(link.socket)
        del self._watch[link.socket]

    def _refuse(self, visitor: _Visitor, error: FerruleError) -> None:
        _log.warning("%s", error)
        if self._refused is None:
            self._refused = (time.monotonic(), error)
        self._dismiss(visitor)

    def _dismiss(self, visitor: _Visitor) -> None:
        self._selector.unregister(visitor.sock)
        del self._visitors[visitor.sock]
        visitor.sock.close()
