"""A model whose load takes a minute loses a rank: the others do not load again, and once the lost one's part is there
again the next token is not far."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest
from served_server import Served

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.errors import ConfigError
from ferrule.process.control_group import ControlGroup, reading_limit

SHAPE = RandomModel("llama-0.1b-random", 512, 2048, 16, 8, 4)
LOAD_SECONDS = 60.0
TOKENS, KILLED_AT = 200, 20
SOON = 2.0
STANDBY_SECONDS = 180.0
AGAIN = 0.05
"""Part of the model that a rank may read to see that it still is the same model."""


@dataclass
class Reading:
    """``read``: bytes from disk of each rank's process, by its id; ``ended``: when one was last seen to read more."""

    read: dict[int, int] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)

    async def watch(self, served: Served) -> None:
        while True:
            for process in served.ranks().values():
                try:
                    bytes_read = process.io_counters().read_bytes
                except psutil.NoSuchProcess:
                    continue
                if bytes_read > self.read.get(process.pid, 0):
                    self.read[process.pid], self.ended[process.pid] = bytes_read, time.monotonic()
            await asyncio.sleep(0.02)


def standby(served: Served) -> int:
    return sum(child.name() == "ferrule standby" for child in served.server().children(recursive=True))


def forget(folder: Path) -> None:
    """Have nothing of the files in ``folder`` in the page cache, as where weights take all memory."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())  # what is not written yet would stay
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.soak
@pytest.mark.parametrize("cached", [True, False], ids=["page cache", "disk"])
def test_the_others_do_not_load_again(cached: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """``cached``: memory has had room for the model's files since they were read; else the disk is read again."""
    model = save_random_model(tmp_path / SHAPE.name, SHAPE)
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    forget(model)
    options = {"model": str(model), "tensor": 2, "threads": 1, "standby": True, "self_test": False}

    async def body() -> tuple[float, float, float]:
        """Seconds of the load, from the death of a rank to the last byte that another one read for it, and to the next
        token of an answer."""
        reading, begun = Reading(), time.monotonic()
        served = Served(tmp_path / "served", options)
        group.enter(served.process.pid)
        with served:
            loaded = time.monotonic() - begun
            deadline = time.monotonic() + STANDBY_SECONDS
            while standby(served) < 2:
                assert time.monotonic() < deadline, "standby processes are not ready"
                await asyncio.sleep(0.1)
            ranks = served.ranks()
            watching = asyncio.create_task(reading.watch(served))
            times: list[float] = []
            struck, before = 0.0, {}
            asked = {"prompt": [5, 6, 7], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
            async with httpx.AsyncClient(base_url=served.url, timeout=10 * LOAD_SECONDS) as client:
                async with client.stream("POST", "/v1/completions", json=asked) as response:
                    async for line in response.aiter_lines():
                        if line.startswith("data: {"):
                            times.append(time.monotonic())
                        if len(times) == KILLED_AT and not struck:
                            if not cached:
                                forget(model)
                            before = {rank: process.io_counters().read_bytes for rank, process in ranks.items()}
                            struck = time.monotonic()
                            ranks[1].kill()
                health = (await client.get("/health")).json()
            watching.cancel()
            now = served.ranks()
            assert len(times) >= TOKENS, "the answer is whole"
            assert health["last_recovery"]["kept"] == [0]
            assert now[0].pid == ranks[0].pid
            assert now[0].io_counters().read_bytes - before[0] < AGAIN * size, "it has read its weights again"
            from_disk = reading.read.get(now[1].pid, 0)
            assert (from_disk < AGAIN * size) if cached else (from_disk > size / 4)
            gaps = {after - before: after for before, after in pairwise(times[KILLED_AT - 1 :])}
            read = struck if cached else reading.ended[now[1].pid]
            return loaded, read - struck, gaps[max(gaps)] - struck

    with ExitStack() as stack:
        try:
            group = stack.enter_context(ControlGroup(reading_limit(tmp_path, round(size / LOAD_SECONDS))))
        except (ConfigError, OSError) as error:
            pytest.skip(str(error))
        loaded, read, token = asyncio.run(body())
    request.config.get_terminal_writer().line(
        f"\nloading took {loaded:.1f} s; after kill -9 of a rank its part was there again after {read:.1f} s, "
        f"and the next token came {token - read:.2f} s later"
    )
    assert loaded > LOAD_SECONDS * 0.9
    assert token - read < SOON
