"""Hand a socket to another process of the same machine, also from one host of a lab to another."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 1.0
_WORD = b"S"


@contextmanager
def borrowing(path: str) -> Iterator[socket.socket]:
    """A listener where one other process of the same user may `lend`, for `borrow`, until the block ends.

    By a path, since the namespace of abstract names differs from host to host of a lab.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.settimeout(_SECONDS)
        mask = os.umask(0o077)
        try:
            listener.bind(path)
            listener.listen(1)
        finally:
            os.umask(mask)
        try:
            yield listener
        finally:
            Path(path).unlink(missing_ok=True)


def borrow(listener: socket.socket) -> socket.socket:
    """Socket that was lent. Raises `OSError` if nothing is within a second."""
    with listener.accept()[0] as connection:
        connection.settimeout(_SECONDS)
        _, fds, _, _ = socket.recv_fds(connection, len(_WORD), 1)
    if not fds:
        raise OSError("nothing was lent")
    return socket.socket(fileno=fds[0])


def lend(path: str, sock: socket.socket) -> None:
    """Give the process that is `borrowing` at ``path`` a copy of ``sock``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        socket.send_fds(connection, [_WORD], [sock.fileno()])
