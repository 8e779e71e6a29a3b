"""Agents in one event loop, each with a directory of its own, at free ports of the loopback address."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ferrule.agent.agent import Agent
from ferrule.cluster.desired import DesiredModel
from ferrule.cluster.home import ClusterHome, HostSettings, new_host_id

KEY = bytes(range(32))
SECONDS = 20.0
"""Longer than anything takes on a busy machine."""


def make_home(folder: Path, name: str, *, key: bytes = KEY, seeds: tuple[str, ...] = ()) -> ClusterHome:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    home = ClusterHome("testing", folder / name)
    home.create(key, HostSettings(new_host_id(), name, port, "127.0.0.1", seeds, mdns=False))
    return home


@asynccontextmanager
async def running(home: ClusterHome) -> AsyncIterator[Agent]:
    agent = Agent(home)
    ready = asyncio.Event()
    task = asyncio.create_task(agent.run(lambda port, addresses: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    lock = home.take()
    try:
        yield agent
    finally:
        os.close(lock)
        agent.stop()
        await asyncio.wait_for(task, SECONDS)


def desired(owner, **fields):
    """A model that was ordered on the host with this id, and is served there unless ``host`` names another."""
    return DesiredModel(**{"model": "x", "host": owner, "owner": owner, "port": 8420} | fields)


def place(home: ClusterHome) -> str:
    return f"127.0.0.1:{home.settings.port}"


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not what():
            await asyncio.sleep(0.01)


def sees(agent: Agent, other: Agent) -> bool:
    peer = agent.cluster.peers.get(other.cluster.host)
    return peer is not None and peer.up
