"""Forward the output of ranks line by line, each line behind its rank."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import IO

_CHUNK = 1 << 16


@dataclass
class _Stream:
    prefix: bytes
    source: IO[bytes]
    sink: IO[bytes]
    rest: bytes = b""

    def pump(self) -> bool:
        """Forward the whole lines that are there. False at the end of the stream."""
        while True:
            try:
                data = os.read(self.source.fileno(), _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self.rest = (self.rest + data).split(b"\n")
            self._write(lines)

    def finish(self) -> None:
        if self.rest:
            self._write([self.rest])
            self.rest = b""
        self.source.close()

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            self.sink.write(b"".join(self.prefix + line + b"\n" for line in lines))
            self.sink.flush()


class PrefixedOutput:
    """The piped streams of all ranks; moved by whoever calls `pump`, because there is no thread for it."""

    def __init__(self) -> None:
        self._streams: list[_Stream] = []

    def add(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None:
                os.set_blocking(source.fileno(), False)
                self._streams.append(_Stream(f"[{rank}] ".encode(), source, sink.buffer))

    def fds(self) -> list[int]:
        """What to wait on for more output."""
        return [stream.source.fileno() for stream in self._streams]

    def pump(self) -> None:
        self._streams = [stream for stream in self._streams if self._keep(stream)]

    def finish(self) -> None:
        """Forward the rest, also a last line without its end."""
        self.pump()
        for stream in self._streams:
            stream.finish()
        self._streams.clear()

    @staticmethod
    def _keep(stream: _Stream) -> bool:
        if stream.pump():
            return True
        stream.finish()
        return False
