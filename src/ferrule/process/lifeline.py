"""Heartbeats and messages over a socket pair between a child process and its parent, and the program that runs as
such a child: ``python -m ferrule.process.lifeline MODULE [ARGUMENT ...] DESCRIPTOR``.

A process that is stopped, or hangs in the kernel, does not end. So it sends a heartbeat every second, from before it
imports ``MODULE``, which takes seconds, until its end, from a thread of its own. It imports little, so that the first
one comes soon.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

LIFELINE = ("-m", "ferrule.process.lifeline")
"""Of Python's command line: this program."""
BEAT_SECONDS = 1.0
BEAT = b'{"event":"alive"}\n'
LISTEN_FD = "FERRULE_LISTEN_FD"
STANDBY_NAME = "ferrule standby"
"""Of a process that waits for an order (at most 15 bytes: the kernel cuts what is longer)."""


class Lifeline:
    """``fd``: an inherited, connected stream socket, now owned by this object. Lines of JSON go up and down."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)
        self._sending = threading.Lock()

    def send(self, line: bytes) -> None:
        """Send a whole line, from any thread. Raises `OSError` where the starter is gone."""
        with self._sending:
            self.socket.sendall(line)

    def start(self) -> None:
        """Send a heartbeat now and every `BEAT_SECONDS`."""
        threading.Thread(target=self._live, name="heartbeat", daemon=True).start()

    def _live(self) -> None:
        try:
            while True:
                self._beat()
                time.sleep(BEAT_SECONDS)
        except OSError:
            return  # the starter is gone, which the main thread notices too

    def _beat(self) -> None:
        with self._sending:
            try:
                sent = self.socket.send(BEAT, socket.MSG_DONTWAIT)
            except BlockingIOError:  # the starter does not read at present; when it does, it finds enough of them
                return
            if sent < len(BEAT):
                self.socket.sendall(BEAT[sent:])


def name_process(name: str) -> None:
    """As ``top`` and ``ps`` show it, where the system lets a process name itself."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(name)


def run(module: str, arguments: Sequence[str], descriptor: int) -> int:
    """Import a module, and call its ``main`` with the arguments and the line."""
    line = Lifeline(descriptor)
    line.start()
    gc.disable()  # an import makes much that lives and hardly any garbage: looking for that takes a fifth of the time
    main = importlib.import_module(module).main
    gc.freeze()
    gc.enable()
    status: int = main(list(arguments), line)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:-1], int(sys.argv[-1])))
