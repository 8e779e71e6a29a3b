"""A standby process, which has done its imports ahead of an order: ``python -m ferrule.process.standby MODULE SOCKET``.

It says `READY` once ``MODULE`` is imported. An `Order` comes with descriptors: of its log, of the line to its starter
(`ferrule.process.lifeline`), and perhaps of a listening socket. Without an order it ends with its socket.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ferrule.process.lifeline import LISTEN_FD, STANDBY_NAME, name_process, run

READY = b"!"
_CHUNK = 1 << 16
_MOST_FDS = 3


class Order(msgspec.Struct, frozen=True, tag=True):
    """Order to call ``MODULE``'s ``main``: its arguments, and variables to set before."""

    arguments: tuple[str, ...]
    env: dict[str, str]


def send_order(standby: socket.socket, order: Order, fds: Sequence[int]) -> None:
    """The descriptors remain the caller's. Raises `OSError`, and the process has to be ended."""
    data = msgspec.json.encode(order) + b"\n"
    sent = socket.send_fds(standby, [data], fds)
    if sent < len(data):  # not for nothing left: it may have taken the order and hung up
        standby.sendall(data[sent:])


def _receive_order(standby: socket.socket) -> tuple[Order, list[int]] | None:
    data = b""
    fds: list[int] = []
    while not data.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(standby, _CHUNK, _MOST_FDS)
        if not piece:
            return None
        data += piece
        fds += more
    return msgspec.json.decode(data, type=Order), fds


def main(arguments: Sequence[str]) -> int:
    module, descriptor = arguments
    name_process(STANDBY_NAME)
    with socket.socket(fileno=int(descriptor)) as standby:
        importlib.import_module(module)
        with suppress(OSError):  # it has its order already, and its starter hung up
            standby.sendall(READY)
        received = _receive_order(standby)
    if received is None:
        return 0
    order, (log, line, *listener) = received
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    os.environ.update(order.env)
    if listener:
        os.environ[LISTEN_FD] = str(listener[0])
    return run(module, order.arguments, line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
