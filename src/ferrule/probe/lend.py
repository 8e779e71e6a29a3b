"""Hand a socket to another process of the same machine, also from one host of a lab to another."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_SECONDS = 1.0
_WORD = b"S"


class Borrower:
    """Where one other process may `lend`; a context manager. Only for processes of the same user.

    By a path, since the namespace of abstract names differs from host to host of a lab.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.settimeout(_SECONDS)
        mask = os.umask(0o077)
        try:
            self._listener.bind(path)
            self._listener.listen(1)
        except OSError:
            self._listener.close()
            raise
        finally:
            os.umask(mask)

    def socket(self) -> socket.socket:
        """What was lent. Raises `OSError` if nothing is within a second."""
        with self._listener.accept()[0] as connection:
            connection.settimeout(_SECONDS)
            _, fds, _, _ = socket.recv_fds(connection, len(_WORD), 1)
        if not fds:
            raise OSError("nothing was lent")
        return socket.socket(fileno=fds[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        with suppress(FileNotFoundError):
            Path(self._path).unlink()


def lend(path: str, sock: socket.socket) -> None:
    """Give the `Borrower` at ``path`` a copy of ``sock``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        socket.send_fds(connection, [_WORD], [sock.fileno()])
