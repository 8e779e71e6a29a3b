"""The launcher's end of the line to one host."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

from ferrule.launch.facts import HostFacts
from ferrule.launch.places import Place
from ferrule.launch.protocol import PROTOCOL, Order, Ready, Report, encode, reports

_CHUNK = 1 << 16
_MAX_TOLD = 1 << 14


class Channel:
    """A supervisor that was started, and what it has said so far. Raises `OSError` if it cannot be started.

    ``facts`` and ``ports`` are there once it has said hello; ``error``: why there is nothing more to expect of it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.facts: HostFacts | None = None
        self.ports: tuple[int, ...] = ()
        self.error: str | None = None
        self.told = ""
        self.ended = False
        self._decoder = reports()
        self._lock = threading.Lock()
        self._carrier = place.open()
        streams = (self._carrier.stdin, self._carrier.stdout, self._carrier.stderr)
        self._stdin, self._stdout, self._stderr = (stream for stream in streams if stream is not None)
        self._out, self._err = self._stdout.fileno(), self._stderr.fileno()
        self._open = {self._out, self._err}
        for fd in self._open:
            os.set_blocking(fd, False)

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(self._open)

    def send(self, order: Order) -> None:
        """Ignored where the supervisor has ended: `read` finds out. May be called from any thread."""
        with self._lock:
            try:
                if not self._stdin.closed:
                    self._stdin.write(encode(order))
            except OSError:
                return

    def read(self) -> Iterator[Report]:
        """Messages that have come since; sets ``error`` where the supervisor ends early or does not make sense."""
        while self._out in self._open and (data := self._take(self._out)):
            try:
                yield from self._decoder.feed(data)
            except ValueError as error:
                self.error = f"{self.place.entry.name} does not talk as a supervisor does: {error}"
                self.close(0)

    def read_errors(self) -> bytes:
        """Lines that it, or ssh, has printed to its standard error since."""
        found = b""
        while self._err in self._open and (data := self._take(self._err)):
            found += data
        self.told = (self.told + found.decode(errors="replace"))[-_MAX_TOLD:]
        return found

    def greet(self, report: Report) -> None:
        """Take its hello, or why there is none."""
        name = self.place.entry.name
        if not isinstance(report, Ready):
            self.error = f"{name} does not talk as a supervisor does: it began with {type(report).__name__}"
        elif report.protocol != PROTOCOL or report.facts is None:
            self.error = f"{name} has another version of Ferrule, with another protocol; install the same on all hosts"
        else:
            self.facts, self.ports = report.facts, report.ports

    @property
    def ending(self) -> bool:
        """Whether it has said its last word, and only its end is to be waited for. What it has started to share a
        connection (ssh's ControlPersist) may keep its standard error open."""
        return self._out not in self._open and not self.ended

    def find_out(self) -> None:
        """Once it has ended: why."""
        if not self.ending or (code := self._carrier.poll()) is None:
            return
        self.read_errors()
        self.ended = True
        if self.facts is None and self.error is None:
            self.error = self.place.why(code, self.told)
        elif code != 0 and self.error is None:
            self.error = f"lost {self.place.entry.name}: {self.place.why(code, self.told)}"

    def hang_up(self) -> None:
        """The supervisor ends its ranks when it hears no more of us."""
        with self._lock:
            self._stdin.close()

    def close(self, timeout: float) -> None:
        """Hang up, and wait ``timeout`` seconds before the connection is cut; at once where no answer has come yet."""
        self.hang_up()
        try:
            self._carrier.wait(timeout if self.facts is not None else 0)
        except subprocess.TimeoutExpired:
            self._carrier.cut()
            self._carrier.wait()
        self._open.clear()
        self._stdout.close()
        self._stderr.close()
        self.ended = True

    def _take(self, fd: int) -> bytes:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            self._open.discard(fd)
        return data
