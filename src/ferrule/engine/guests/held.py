"""A process of a guest, held by this one: its last words are kept, and it ends with this process, however that does."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence

from ferrule.config import outer_environment, without_secrets
from ferrule.errors import EngineError, ModelUnavailable
from ferrule.process import Outputs, end_groups, start, when_ended
from ferrule.process.guarded import guarded

END_SECONDS = 1.0
"""That it has to end by itself."""
KILL_SECONDS = 2.0
_LINES = 5
"""Of its last words that an error quotes."""
_LINE_BYTES = 400

_log = logging.getLogger(__name__)


class HeldProcess:
    """``name``: for people. ``environment``: variables beside this process's own, None for one that it does not have;
    it has none whose names speak of secrets. ``begin``: of the line by which it says that it is ready. Started by the
    thread of the event loop. Raises `ModelUnavailable` where that cannot be now."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str | None] | None = None,
        *,
        begin: str | None = None,
    ) -> None:
        self.name = name
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when it has ended: how, in words."""
        self._words: deque[str] = deque(maxlen=_LINES)
        self._rests: dict[int, bytes] = {}
        self._begin = begin
        self._said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._outputs = Outputs(self._printed)
        with self._outputs.of(0) as (out, errors):
            try:
                self._process = start(
                    guarded(command),
                    env=_environment(environment or {}),
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=errors,
                    tie=False,
                )
            except OSError as error:
                raise ModelUnavailable(f"this machine cannot start a process now: {error}") from error
        self._running = {self._process.pid}
        for fd in self._outputs.fds:
            asyncio.get_running_loop().add_reader(fd, self._forward, fd)
        when_ended(self._process, self._ended)

    async def ready(self, seconds: float) -> str:
        """The rest of the line by which it says that it is ready. Raises `EngineError` where it ends before, or after
        so many ``seconds``."""
        await asyncio.wait([self._said, self.lost], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._said.done():
            return self._said.result()
        how = self.lost.result() if self.lost.done() else f"was not ready within {seconds:g} s"
        raise EngineError(f"{self.name} {how}{self.words}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def words(self) -> str:
        """What it has said last, to be put behind an error; empty where it has said nothing."""
        return f"; its last words: {' | '.join(self._words)}" if self._words else ""

    async def stop(self) -> None:
        """End it with all that it has started. Safe to call twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await end_groups(lambda: self._running, END_SECONDS, KILL_SECONDS)
        if self._running:
            _log.error("%s (process %d) does not end", self.name, self.pid)
            self._close_outputs()

    def _ended(self, code: int) -> None:
        self._running.clear()
        self._outputs.drain()
        self._close_outputs()
        if not self.lost.done():
            self.lost.set_result(_how(code))

    def _forward(self, fd: int) -> None:
        if not self._outputs.forward(fd) and fd not in self._outputs.fds:
            asyncio.get_running_loop().remove_reader(fd)

    def _close_outputs(self) -> None:
        for fd in self._outputs.fds:
            asyncio.get_running_loop().remove_reader(fd)
        self._outputs.close()

    def _printed(self, rank: int, stream: int, data: bytes) -> None:
        *lines, rest = (self._rests.get(stream, b"") + data).split(b"\n")
        self._rests[stream] = rest[:_LINE_BYTES]
        for line in lines:
            text = line[:_LINE_BYTES].decode(errors="replace").strip()
            if text:
                _log.debug("%s: %s", self.name, text)
                self._words.append(text)
                if self._begin is not None and text.startswith(self._begin) and not self._said.done():
                    self._said.set_result(text.removeprefix(self._begin))


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    whole = without_secrets(outer_environment()) | dict(changes)
    return {name: value for name, value in whole.items() if value is not None}


def _how(code: int) -> str:
    """Of the end of a process, whose guard gives 128 and the signal's number where one has killed it."""
    number = -code if code < 0 else code - 128
    if number > 0:
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            pass
    return f"ended with status {code}"
