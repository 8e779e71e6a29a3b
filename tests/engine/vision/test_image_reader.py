"""The image processor's process: what it is killed for, and when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from ferrule.engine.images import reader as module
from ferrule.engine.images.processor import Order
from ferrule.engine.images.reader import ImageReader
from ferrule.errors import EngineError

PROGRAM = """
import os, struct, sys, time
import msgspec
def send(data):
    sys.stdout.buffer.write(struct.pack("<Q", len(data)) + data)
    sys.stdout.buffer.flush()
assert msgspec.json.decode(sys.argv[1])["directory"] != "/broken", "no such model"
send(b"")
while header := sys.stdin.buffer.read(8):
    file = sys.stdin.buffer.read(*struct.unpack("<Q", header))
    if file == b"hang":
        time.sleep(60)
    if file == b"secrets":
        file = repr(sorted(name for name in os.environ if name.startswith(("FERRULE_", "HF_")))).encode()
    if file == b"die":
        sys.exit("out of memory")
    send(msgspec.msgpack.encode({"fault": file.decode()}))
"""
"""It answers as the real one, with what it got."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    program = tmp_path / "processor.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(module, "PROGRAM", (str(program),))

    def running(
        body: Callable[[ImageReader], Awaitable[None]], directory: str = "", idle: float = 60.0, limit: float = 20.0
    ) -> None:
        async def main() -> None:
            reader = ImageReader(Order(directory, "float32", (), {}), idle, limit)
            try:
                async with asyncio.timeout(30):
                    await body(reader)
            finally:
                await reader.close()

        asyncio.run(main())

    return running


def test_one_process_reads_all_images_and_begins_again_after_a_fault(run: Callable[..., None]) -> None:
    async def body(reader: ImageReader) -> None:
        assert reader.pid is None, "there is none before the first image"
        answers = await asyncio.gather(*(reader.read(text) for text in (b"one", b"two", b"three" * 100_000)))
        assert [(answer.fault or "")[:5] for answer in answers] == ["one", "two", "three"]
        first = reader.pid
        assert "ended (out of memory)" in str((await reader.read(b"die")).fault)
        assert (await reader.read(b"four")).fault == "four"
        assert first is not None
        assert reader.pid not in (None, first)
        os.kill(reader.pid or 0, signal.SIGKILL)
        assert "ended (-9)" in str((await reader.read(b"five")).fault)

    run(body)


def test_an_image_that_takes_too_long_or_is_given_up_leaves_no_process(run: Callable[..., None]) -> None:
    async def body(reader: ImageReader) -> None:
        assert (await reader.read(b"one")).fault == "one"
        pid = reader.pid
        assert pid is not None
        assert (await reader.read(b"hang")).fault == "reading it took more than 0.3 s"
        assert not psutil.pid_exists(pid)
        asking = asyncio.ensure_future(reader.read(b"hang"))
        while reader.pid is None:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert reader.pid is None

    run(body, limit=0.3)


def test_it_gets_no_secrets(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FERRULE_API_KEY", "HF_TOKEN", "FERRULE_PIN"):
        monkeypatch.setenv(name, "x")

    async def body(reader: ImageReader) -> None:
        found = str((await reader.read(b"secrets")).fault)
        assert "FERRULE_PIN" in found
        assert "KEY" not in found
        assert "TOKEN" not in found

    run(body)


def test_it_ends_when_no_image_comes(run: Callable[..., None]) -> None:
    async def body(reader: ImageReader) -> None:
        assert (await reader.read(b"one")).fault == "one"
        pid = reader.pid
        assert pid is not None
        while psutil.pid_exists(pid):
            await asyncio.sleep(0.01)
        assert reader.pid is None

    run(body, idle=0.05)


def test_a_processor_that_does_not_start_says_why(run: Callable[..., None]) -> None:
    async def body(reader: ImageReader) -> None:
        with pytest.raises(EngineError, match="does not start: AssertionError: no such model"):
            await reader.read(b"one")
        assert reader.pid is None

    run(body, "/broken")
