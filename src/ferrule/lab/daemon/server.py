"""The server in a lab's background process: answers requests on a socket in the lab's directory.

A process of this kind is a program with four arguments: the lab's directory, the profile's name or file, the lab's
options, and the descriptor of the lock that it inherits. It prints an answer: it is ready, or why not.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ferrule.errors import FerruleError, LabError
from ferrule.lab.daemon import messages, registry
from ferrule.lab.daemon.messages import Down, LabRequest, Lend
from ferrule.lab.daemon.registry import State

_REQUEST_SECONDS = 5.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Held:
    """A lab that is up. ``state``: for its state file; ``answer``: to any request but `Lend`, which ``lend`` answers on
    the connection itself."""

    state: State
    answer: Callable[[LabRequest], object]
    lend: Callable[[socket.socket, Lend], None] | None = None


class Server:
    """Answers each caller in a thread of its own, until one says ``down`` or a signal comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def in_main_thread(self, do: Callable[[], _T], seconds: float) -> _T:
        """Result of ``do``, run there one call after the other. Raises `TimeoutError` after ``seconds``."""
        future: Future[_T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(do())
                except BaseException as error:  # noqa: BLE001 - it is the caller's
                    future.set_exception(error)

        self._work.put(work)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self) -> None:
        self._work.put(None)

    def run(self, lab: Held, ready: Callable[[], None]) -> None:
        """In the main thread; ``ready`` is called when callers can come."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop())
        registry.write_state(self.folder, lab.state)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self.folder / registry.CONTROL))
            listener.listen()
            threading.Thread(target=self._listen, args=(lab, listener), daemon=True).start()
            ready()
            while (work := self._work.get()) is not None:
                work()

    def _listen(self, lab: Held, listener: socket.socket) -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._converse, args=(lab, connection), daemon=True).start()

    def _converse(self, lab: Held, connection: socket.socket) -> None:
        """A caller that says nothing in time, or too much, or is another user, is left."""
        with connection, suppress(OSError):
            connection.settimeout(_REQUEST_SECONDS)
            _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                return
            line = messages.read_line(connection)
            if not line:
                return
            request: LabRequest | None = None
            try:
                request = messages.decode(line, LabRequest)
                if isinstance(request, Lend) and lab.lend is not None:
                    lab.lend(connection, request)
                    return
                said = messages.answer(None if isinstance(request, Down) else lab.answer(request))
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - it is answered, and written down where it is a fault of ours
                said = messages.refusal(error, self.folder / registry.LOG)
            connection.sendall(said)
            if isinstance(request, Down):
                self.stop()


def main(arguments: list[str], hold: Callable[[Server, str, str], AbstractContextManager[Held]]) -> int:
    """``hold``: brings up the lab of a profile with options, until its context is left."""
    folder, wanted, options = Path(arguments[0]), arguments[1], arguments[2]
    os.set_inheritable(int(arguments[3]), False)
    os.umask(0o077)
    server = Server(folder)
    try:
        with hold(server, wanted, options) as lab:
            server.run(lab, lambda: _say(messages.answer(None)))
    except (FerruleError, OSError) as error:
        with suppress(BrokenPipeError):
            said = error if isinstance(error, FerruleError) else LabError(str(error))
            _say(messages.refusal(said, folder / registry.LOG))
        return 1
    return 0


def _say(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line)
