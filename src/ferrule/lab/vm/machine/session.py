"""Commands in a guest that is up, through a pair of its ports: one for requests and output, one for errors.

A request is a line: a mark that cannot be guessed, the script in base64, and ``end``. The answer is the script's
output, then the mark on a line of its own with the exit status.
"""

from __future__ import annotations

import base64
import os
import secrets
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ferrule.errors import LabError

_CHUNK_BYTES = 1 << 16
_LOOK_SECONDS = 0.5
_MOST_SCRIPT_BYTES = 1 << 20

Sink = Callable[[bytes], object]


class SessionLost(LabError):
    """The guest went away."""


class SessionTimeout(LabError):
    """The command did not end in time, and still runs."""


@dataclass(frozen=True)
class Completed:
    """Result of a command that has ended in a guest."""

    exit_code: int
    output: str
    errors: str


class Session:
    """Runs one command after the other. Ours are both sockets until `close`."""

    def __init__(self, output: socket.socket, errors: socket.socket) -> None:
        self._output = output
        self._errors = errors
        self._cancelled = False
        self.busy = False
        """Whether a command runs, or was left running."""
        for end in (output, errors):
            end.setblocking(False)

    def run(self, script: str, timeout: float, output: Sink, errors: Sink) -> int:
        """The exit status of a bash ``script``; what it writes goes to ``output`` and ``errors`` as it comes.

        What earlier commands left unread comes first. Raises `SessionTimeout` after ``timeout`` seconds (the command
        still runs then) or `cancel`, `SessionLost` when the guest ends.
        """
        self.busy = True
        mark = secrets.token_hex(16)
        deadline = time.monotonic() + timeout
        self._send(request(mark, script), deadline)
        reply = Reply(mark)
        ends = [self._output, self._errors]
        while reply.status is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._cancelled:
                raise SessionTimeout("the command did not end in time")
            ready = select.select(ends, [], [], min(left, _LOOK_SECONDS))[0]
            for end in ready:
                chunk = _read(end)
                if end is self._errors:
                    ends = ends if chunk else [self._output]
                    errors(chunk)
                elif not chunk:
                    raise SessionLost("the guest went down")
                elif data := reply.feed(chunk):
                    output(data)
        # The guest's writes to its ports end in the order in which it made them: what is to come is there.
        while select.select([self._errors], [], [], 0)[0] and (chunk := _read(self._errors)):
            errors(chunk)
        self.busy = False
        return reply.status

    def cancel(self) -> None:
        """Let another thread's `run` end soon."""
        self._cancelled = True

    def _send(self, line: bytes, deadline: float) -> None:
        while line:
            ready = select.select([], [self._output], [], max(deadline - time.monotonic(), 0))[1]
            if not ready:
                raise SessionTimeout("the guest takes no command")
            try:
                line = line[os.write(self._output.fileno(), line) :]
            except OSError as error:
                raise SessionLost("the guest went down") from error

    def close(self) -> None:
        self._output.close()
        self._errors.close()


class Reply:
    """Finds the end of a command's output. ``status`` is its exit status, None until it came."""

    def __init__(self, mark: str) -> None:
        self._mark = f"\n{mark} ".encode()
        self._held = b""
        self.status: int | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Part of the output that certainly does not belong to the mark."""
        self._held += chunk
        data, mark, rest = self._held.partition(self._mark)
        if mark:
            number, newline, _ = rest.partition(b"\n")
            if newline:
                self.status = int(number)
                self._held = b""
                return data
            self._held = mark + rest
            return data
        keep = next(size for size in range(len(self._mark) - 1, -1, -1) if data.endswith(self._mark[:size]))
        data, self._held = data[: len(data) - keep], data[len(data) - keep :]
        return data


def nowhere(_: bytes) -> None:
    """Throws away what a command says."""


def _read(end: socket.socket) -> bytes:
    """Output that is there, or nothing if the guest is gone."""
    try:
        return end.recv(_CHUNK_BYTES)
    except ConnectionError:
        return b""


def request(mark: str, script: str) -> bytes:
    """The line that asks a guest to run ``script``."""
    encoded = script.encode()
    if len(encoded) > _MOST_SCRIPT_BYTES:
        raise LabError(
            f"a command for a guest has at most {_MOST_SCRIPT_BYTES} bytes, not {len(encoded)}; give it as a file"
        )
    # The first newline ends what a client that died has left of a line.
    return f"\n{mark} ".encode() + base64.b64encode(encoded) + b" end\n"
