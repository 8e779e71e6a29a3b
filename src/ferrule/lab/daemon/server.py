"""The server in a lab's background process: answers on a socket in the lab's directory, a line of JSON each way.

A process of this kind is a program with four arguments: the lab's directory, the profile's name or file, the lab's
options, and the descriptor of the lock that it inherits. It says in a line of JSON what became of it.
"""

from __future__ import annotations

import inspect
import json
import os
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ferrule.errors import ConfigError, FerruleError, LabError
from ferrule.lab.daemon import registry

_REQUEST_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True)
class Held:
    """A lab that is up. ``state``: what its state file holds. ``answers``: what may be asked of it, by name, with the
    request's other fields as arguments. ``conversations``: the same for requests that get the connection itself, and
    answer on it."""

    state: Mapping[str, Any]
    answers: Mapping[str, Callable[..., Any]]
    conversations: Mapping[str, Callable[..., None]] = field(default_factory=dict)


class Server:
    """Answers each caller in a thread of its own, until one says ``down`` or a signal comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def in_main_thread(self, do: Callable[[], _T], seconds: float) -> _T:
        """What ``do`` returns or raises there, one call after the other. Raises `TimeoutError` after ``seconds``."""
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
            line = connection.makefile("rb").readline(_MOST_BYTES)
            if not line.endswith(b"\n"):
                return
            ends = False
            reply: dict[str, Any]
            try:
                name, arguments = _request(line)
                if name in lab.conversations:
                    _bound(lab.conversations[name], connection, **arguments)()
                    return
                ends = name == "down"
                if not ends and name not in lab.answers:
                    raise LabError(f"the lab {self.folder.name} does not know {name!r}; another version runs it")
                reply = {"answer": {} if ends else _bound(lab.answers[name], **arguments)()}
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - it is answered, and written down where it is a fault of ours
                if not isinstance(error, FerruleError):
                    traceback.print_exc()
                reply = failure(error, self.folder)
            connection.sendall(json.dumps(reply).encode() + b"\n")
            if ends:
                self.stop()


def _request(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = json.loads(line)
        return request.pop("do"), request
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"that was no request: {error}") from None


def _bound(answer: Callable[..., _T], *arguments: Any, **named: Any) -> Callable[[], _T]:
    """A call with these arguments. Raises `ConfigError` where it takes others."""
    try:
        inspect.signature(answer).bind(*arguments, **named)
    except TypeError as error:
        raise ConfigError(f"that was no request: {error}") from None
    return lambda: answer(*arguments, **named)


def failure(error: Exception, folder: Path) -> dict[str, Any]:
    """An error as an answer."""
    if isinstance(error, FerruleError):
        return {"error": str(error), "code": error.code}
    said = f"{type(error).__name__}: {error}; what led to it is in {folder / registry.LOG}"
    return {"error": said, "code": LabError.code}


def main(arguments: list[str], hold: Callable[[Server, str, str], AbstractContextManager[Held]]) -> int:
    """``hold``: brings up the lab of a profile with options, until its context is left."""
    folder, wanted, options = Path(arguments[0]), arguments[1], arguments[2]
    os.set_inheritable(int(arguments[3]), False)
    os.umask(0o077)
    server = Server(folder)
    try:
        with hold(server, wanted, options) as lab:
            server.run(lab, lambda: _say({"answer": {}}))
    except (FerruleError, OSError) as error:
        with suppress(BrokenPipeError):
            _say({"error": str(error), "code": getattr(error, "code", LabError.code)})
        return 1
    return 0


def _say(answer: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
