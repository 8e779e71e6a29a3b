"""The line from a process to whoever started it, and the program that such a process is:
``python -m ferrule.process.lifeline MODULE [ARGUMENT ...] DESCRIPTOR``, or ``--spare MODULE DESCRIPTOR``.

A process that is stopped, or hangs in the kernel, does not end. So it says every second that it lives, from before it
imports ``MODULE``, which takes seconds, until its end; a thread of its own says it, however long a computation takes.
It imports little, so that the first sign comes soon.

A spare imports ``MODULE``, says `IMPORTING` meanwhile and `READY` then, and waits at its socket for what it is to do.
It answers each `QUESTION` by `READY`, and is told its environment, its arguments, and the descriptors of its log, of
its line, and perhaps of where it listens.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

BEAT_SECONDS = 1.0
BEAT = b'{"event":"alive"}\n'
SPARE_FLAG = "--spare"
SPARE_NAME = "ferrule spare"
"""Of a process that waits."""
QUESTION, READY, IMPORTING = b"?", b"!", b"."
IMPORTING_SECONDS = 0.5
LISTEN_FD = "FERRULE_LISTEN_FD"
_CHUNK = 1 << 16
_MOST_FDS = 3


class Lifeline:
    """``fd``: an inherited, connected stream socket, now owned by this object. Lines of JSON go up and down."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)
        self._sending = threading.Lock()

    def send(self, line: bytes) -> None:
        """Send a whole line, from any thread. Raises `OSError` where nobody is there any more."""
        with self._sending:
            self.socket.sendall(line)

    def start(self) -> None:
        """Give a sign of life now and every `BEAT_SECONDS`."""
        threading.Thread(target=self._live, name="sign of life", daemon=True).start()

    def _live(self) -> None:
        try:
            while True:
                self._beat()
                time.sleep(BEAT_SECONDS)
        except OSError:
            return  # whoever started this process is gone, which its main thread notices too

    def _beat(self) -> None:
        with self._sending:
            try:
                sent = self.socket.send(BEAT, socket.MSG_DONTWAIT)
            except BlockingIOError:  # nobody reads at present; whoever does so later finds enough signs
                return
            if sent < len(BEAT):
                self.socket.sendall(BEAT[sent:])


def name_process(name: str) -> None:
    """As ``top`` and ``ps`` show it, where the system lets a process name itself."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(name)


def send_order(
    spare: socket.socket, arguments: Sequence[str], env: Mapping[str, str], log: int, line: int, listener: int | None
) -> None:
    """Tell a spare what it is to do; the descriptors remain the caller's. Raises `OSError`, and it has to be ended."""
    order = json.dumps({"arguments": list(arguments), "env": dict(env)}).encode() + b"\n"
    fds = [log, line] if listener is None else [log, line, listener]
    sent = socket.send_fds(spare, [order], fds)
    if sent < len(order):  # not for nothing left: it may have taken the order and hung up
        spare.sendall(order[sent:])


def _import_aloud(name: str, spare: socket.socket) -> None:
    done = threading.Event()

    def tell() -> None:
        with suppress(OSError):
            while not done.wait(IMPORTING_SECONDS):
                spare.sendall(IMPORTING)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    importlib.import_module(name)
    done.set()
    telling.join()


def wait_for_order(spare: socket.socket) -> list[str] | None:
    """What a spare is to do: its arguments, the number of its line last; None where it is not needed any more.

    Its environment and its log are as ordered then.
    """
    data = b""
    fds: list[int] = []
    with suppress(OSError):  # it may have got its order meanwhile, and nobody listens any more
        spare.sendall(READY)
    while not data.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(spare, _CHUNK, _MOST_FDS)
        if not piece:
            return None
        if piece == QUESTION:
            spare.sendall(READY)
            continue
        data += piece
        fds += more
    order = json.loads(data)
    log, line, *listener = fds
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    os.environ.update(order["env"])
    if listener:
        os.environ[LISTEN_FD] = str(listener[0])
    return [*order["arguments"], str(line)]


def main(arguments: Sequence[str]) -> int:
    """Import a module, and call its ``main`` with the other arguments and the line."""
    name, *rest = arguments
    if name == SPARE_FLAG:
        name, fd = rest
        name_process(SPARE_NAME)
        with socket.socket(fileno=int(fd)) as spare:
            _import_aloud(name, spare)
            ordered = wait_for_order(spare)
        if ordered is None:
            return 0
        rest = ordered
    line = Lifeline(int(rest.pop()))
    line.start()
    status: int = importlib.import_module(name).main(rest, line)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
