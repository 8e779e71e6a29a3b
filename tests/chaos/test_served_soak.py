"""A model that is served with all features for a long time: its processes do not grow, and its ranks do not drift.

FERRULE_SOAK_MINUTES: how long, 30 unless given.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from served_load import Load
from served_plan import CABLES, SETUPS, Setup
from served_server import Served
from served_watch import LEAK, NOISE, Sample, Watched, blocks_on_disk
from test_served_chaos import model_of, right_answers

from ferrule.lab import obstacle

CLIENTS = 6
ROUNDS = 4
"""Answers to each question before memory counts: all blocks are there then, and allocators have what they need."""
WARM_SECONDS, QUIET_SECONDS = 900.0, 120.0
BLOCK = 64
"""Tokens."""


async def soak(setup: Setup, folder: Path, seconds: float, say: Callable[[str], None]) -> tuple[Watched, Load]:
    asked = await right_answers(setup, folder, 30)
    cables = CABLES if setup.hosts and obstacle() is None else 0
    watched = Watched()
    with Served(folder / setup.name, {**setup.options, "model": model_of(setup, folder)}, cables) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=None) as client:
            load = Load(client, asked, 1)
            running = asyncio.create_task(load.run(CLIENTS))
            try:
                async with asyncio.timeout(WARM_SECONDS):
                    while load.done < ROUNDS * len(asked):
                        await asyncio.sleep(0.5)
                before = load.done
                await watched.watch(served, seconds, say)
                say(f"{load.done - before} answers in {seconds / 60:g} min")
            finally:
                load.over = True
                await asyncio.wait_for(running, WARM_SECONDS)
            await quiet(client, served, setup)
    return watched, load


async def quiet(client: httpx.AsyncClient, served: Served, setup: Setup) -> None:
    """No sequence is left, also of clients that left, and all ranks have come to have the same blocks on disk."""
    deadline = time.monotonic() + QUIET_SECONDS
    while True:
        health = (await client.get("/health")).json()
        ranks = [blocks_on_disk(served.folder, rank) for rank in range(setup.ranks)]
        same = all(each == ranks[0] for each in ranks)
        if same and len(ranks[0]) == health["prefix_cache"]["stored"] // BLOCK and not health["running"]:
            assert ranks[0]
            return
        assert time.monotonic() < deadline, f"{health}; blocks on disk: {[len(each) for each in ranks]}"
        await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.parametrize("setup", SETUPS[:2], ids=lambda setup: setup.name)
def test_memory_stays_and_ranks_do_not_drift(setup: Setup, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each token follows from the caches and tables of all ranks: where one has others, answers are others."""
    minutes = float(os.environ.get("FERRULE_SOAK_MINUTES") or 30)
    terminal = request.config.get_terminal_writer()
    terminal.line("")
    watched, load = asyncio.run(soak(setup, tmp_path, minutes * 60, terminal.line))
    terminal.line(
        f"{setup.name}: {load.done} answers right, {load.left} clients left; grown by the line through samples: "
        + ", ".join(f"{name} {watched.growth(name)[0] / 2**20:+.1f} MiB" for name in watched.samples)
    )
    assert not load.wrong, "\n".join(load.wrong)
    assert not watched.problems(), "\n".join(watched.problems())


def test_a_leak_shows_and_noise_does_not() -> None:
    hour = [Sample(at, (500 << 20) + (-1) ** at * NOISE // 2, 40 + at % 5) for at in range(0, 3600, 10)]
    assert Watched({"rank 0": hour}).problems() == []
    leaking = [Sample(each.at, each.memory + round(2 * LEAK * each.at / 3600), each.files) for each in hour]
    assert len(Watched({"rank 0": leaking}).problems()) == 1
    opening = [Sample(each.at, each.memory, each.files + round(each.at / 100)) for each in hour]
    assert len(Watched({"rank 0": opening}).problems()) == 1
