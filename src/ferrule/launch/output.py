"""Forward the output of ranks line by line, each line behind its rank."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import IO

_MAX_LINE = 1 << 16
"""Bytes; what is longer is cut, as its end may never come."""

_COLOURS = (36, 33, 35, 32, 34, 91, 96, 93, 95, 92, 94)


class RankOutput:
    """Lines of ranks, on this process's standard output and standard error, each behind the number of its rank.

    Called with a rank, 1 or 2 for the stream, and bytes. ``colours[stream]``: whether numbers are coloured there.
    ``logs``: a folder that gets ``rank-N.log`` with both streams of each rank as they come. Raises `OSError`.
    """

    def __init__(
        self, ranks: int, sinks: dict[int, IO[bytes]], colours: dict[int, bool], logs: Path | None = None
    ) -> None:
        self._width = len(str(ranks - 1))
        self._sinks, self._colours = sinks, colours
        self._rests: dict[tuple[int, int], bytes] = {}
        self._files = ExitStack()
        self._logs: list[IO[bytes]] = []
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            paths = [logs / f"rank-{rank}.log" for rank in range(ranks)]
            self._logs = [self._files.enter_context(path.open("wb", buffering=0)) for path in paths]

    def __call__(self, rank: int, stream: int, data: bytes) -> None:
        if self._logs:
            self._logs[rank].write(data)
        lines, end, rest = (self._rests.get((rank, stream), b"") + data).rpartition(b"\n")
        if len(rest) > _MAX_LINE:
            lines, end, rest = lines + end + rest, b"\n", b""
        self._rests[rank, stream] = rest
        if end:
            self._write(rank, stream, lines)

    def finish(self) -> None:
        """Also the last lines that have no end."""
        for (rank, stream), rest in sorted(self._rests.items()):
            if rest:
                self._write(rank, stream, rest)
        self._rests.clear()
        self._files.close()

    def _write(self, rank: int, stream: int, lines: bytes) -> None:
        prefix = f"[{rank:{self._width}}] "
        if self._colours[stream]:
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        before = prefix.encode()
        sink = self._sinks[stream]
        sink.write(before + lines.replace(b"\n", b"\n" + before) + b"\n")
        sink.flush()
