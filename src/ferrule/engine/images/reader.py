"""The image processor's process, from its start with the first image to its end when none has come for a while."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import msgspec

from ferrule.config import without_secrets
from ferrule.engine.images.processor import LENGTH, Order, Read
from ferrule.errors import EngineError
from ferrule.process import last_line, tied

PROGRAM = ("-m", "ferrule.engine.images.processor")
START_SECONDS = 120.0
"""It imports torch and transformers."""
READ_SECONDS = 30.0
"""Of one image."""
IDLE_SECONDS = 300.0
"""After which it ends: it holds some 300 MiB."""


@dataclass
class _Running:
    process: asyncio.subprocess.Process
    log: IO[bytes]

    def complaint(self) -> str:
        """The last line of its errors."""
        if self.log.closed:
            return ""
        self.log.seek(0)
        return last_line(self.log.read().decode(errors="replace"))


class ImageReader:
    """Reads images one after another, as ``order`` says. All calls come from one event loop."""

    def __init__(self, order: Order, idle_seconds: float = IDLE_SECONDS, read_seconds: float = READ_SECONDS) -> None:
        self._order, self._idle_seconds, self._read_seconds = order, idle_seconds, read_seconds
        self._lock = asyncio.Lock()
        self._running: _Running | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._running is None else self._running.process.pid

    async def read(self, file: bytes) -> Read:
        """What the processor makes of an image's ``file``, or why it cannot. Raises `EngineError` where there is no
        processor that could."""
        async with self._lock:
            self._stop_timer()
            answer = None
            try:
                running = self._running or await self._start()
                answer = await self._ask(running, file)
                return answer
            finally:
                if answer is None:  # also when cancelled: the next one would get this answer
                    await self._end()
                elif not self._closed:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(self._idle_seconds, self._end_idle)

    async def close(self) -> None:
        """End the process, for good. What is being read is given up."""
        self._closed = True
        self._stop_timer()
        await self._end()

    async def _start(self) -> _Running:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        process = await asyncio.create_subprocess_exec(
            *tied([sys.executable, *PROGRAM, msgspec.json.encode(self._order).decode()]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=without_secrets(os.environ),
        )
        running = self._running = _Running(process, log)
        if self._closed:  # meanwhile: `read` ends the process
            raise EngineError("the engine was closed")
        try:
            async with asyncio.timeout(START_SECONDS):
                await _received(process)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            why = running.complaint() or f"it was not ready within {START_SECONDS:g} s"
            raise EngineError(f"the model's image processor does not start: {why}") from error
        return running

    async def _ask(self, running: _Running, file: bytes) -> Read:
        process = running.process
        assert process.stdin is not None
        try:
            async with asyncio.timeout(self._read_seconds):
                process.stdin.write(LENGTH.pack(len(file)) + file)
                await process.stdin.drain()
                return msgspec.msgpack.decode(await _received(process), type=Read)
        except TimeoutError:
            await self._end()
            return Read(fault=f"reading it took more than {self._read_seconds:g} s")
        except (asyncio.IncompleteReadError, OSError):
            await process.wait()
            complaint = running.complaint()
            await self._end()
            return Read(fault=f"the process that was reading it ended ({complaint or process.returncode})")

    def _end_idle(self) -> None:
        self._ending = asyncio.ensure_future(self._end_unused())

    async def _end_unused(self) -> None:
        async with self._lock:  # the next image may have come already: it is read first
            await self._end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        with suppress(ProcessLookupError):
            running.process.kill()
        await running.process.wait()
        running.log.close()


async def _received(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return await process.stdout.readexactly(length)
