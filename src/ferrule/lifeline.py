"""The line from a process to whoever started it, and the program that such a process is:
``python -m ferrule.lifeline MODULE [ARGUMENT ...] DESCRIPTOR``.

A process that is stopped, or hangs in the kernel, does not end. So it says every second that it lives, from before it
imports ``MODULE``, which takes seconds, until its end; a thread of its own says it, however long a computation takes.
It imports little, so that the first sign comes soon.
"""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import time
from collections.abc import Sequence

BEAT_SECONDS = 1.0
BEAT = b'{"event":"alive"}\n'


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


def main(arguments: Sequence[str]) -> int:
    """Import a module, and call its ``main`` with the other arguments and the line."""
    name, *rest = arguments
    line = Lifeline(int(rest.pop()))
    line.start()
    status: int = importlib.import_module(name).main(rest, line)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
