"""One thread that waits for many sockets."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Chore = Callable[[], float | None]


class Loop:
    """Event loop: calls a socket's callback when it is ready. Driven by the thread that waits, one at a time.

    A chore is called before every sleep and says how long that may last at most (in seconds; None: for ever).
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: set[int] = set()
        self._chores: list[Chore] = []

    def add_chore(self, chore: Chore) -> None:
        self._chores.append(chore)

    def watch(self, sock: socket.socket, events: int, ready: Callable[[], None]) -> None:
        """Call ``ready`` whenever the socket is, until `forget`. Replaces what was left for it before."""
        if sock.fileno() in self._watched:
            self._selector.modify(sock, events, ready)
        else:
            self._selector.register(sock, events, ready)
            self._watched.add(sock.fileno())

    def forget(self, sock: socket.socket) -> None:
        """Safe for a socket that is not watched."""
        if sock.fileno() in self._watched:
            self._selector.unregister(sock)
            self._watched.remove(sock.fileno())

    def turn(self, pause: float | None = None) -> bool:
        """Sleep until something is ready, at most ``pause`` seconds, and do what is to be done; whether there was."""
        for limit in [chore() for chore in self._chores]:
            if limit is not None:
                pause = limit if pause is None else min(limit, pause)
        ready = self._selector.select(None if pause is None else max(pause, 0.0))
        for key, _ in ready:
            # One of those before may have closed it.
            if key.fd in self._watched:
                key.data()
        return bool(ready)

    def close(self) -> None:
        """Afterwards sockets can still be forgotten."""
        self._watched.clear()
        self._selector.close()
