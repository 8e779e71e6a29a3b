"""An ``rpc-server`` for each stage of a plan, on this machine or the hosts of a lab, and the ways to them."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from ferrule.cluster.tunnel import LOOPBACK
from ferrule.engine.guests.guest import Launch, on_path
from ferrule.engine.guests.held import HeldProcess
from ferrule.engine.guests.llama_cpp.worker import KEY, READY, START_SECONDS
from ferrule.errors import EngineError
from ferrule.secure import write_address

WORKER_NAMES: Final = ("rpc-server", "ggml-rpc-server")
"""It was renamed."""
_MODULE: Final = "ferrule.engine.guests.llama_cpp.worker"
_ENTRANCE: Final = "ferrule.engine.guests.llama_cpp.entrance"
_MARGIN_SECONDS: Final = 30.0
"""For the imports of a worker's program."""


@asynccontextmanager
async def workers(launch: Launch) -> AsyncIterator[tuple[list[str], asyncio.Future[str]]]:
    """Addresses of the `rpc-server`s of the stages, as llama-server on the first one's host reaches them, and what is
    done once one of them has ended. Raises `EngineError`."""
    program = on_path(*WORKER_NAMES)
    if program is None:
        raise EngineError(f"{WORKER_NAMES[0]} is no longer on the PATH")
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()
    key = {KEY: secrets.token_hex(32)}
    async with AsyncExitStack() as stack:
        processes = []
        for rank in range(len(launch.plan.stages)):
            line = [_MODULE, str(program.path), str(launch.threads), _own_address(launch, rank) or "-"]
            processes.append(await _started(stack, launch, rank, f"rpc-server of rank {rank}", line, key, lost))
        ports = [await _ready(process) for process in processes]
        ways = [write_address((_own_address(launch, rank) or LOOPBACK, port)) for rank, (port,) in enumerate(ports)]
        far = [rank for rank in range(len(ways)) if _own_address(launch, rank) is not None]
        if far:
            places = [ways[rank] for rank in far]
            entrance = await _started(stack, launch, 0, "the way to other hosts", [_ENTRANCE, *places], key, lost)
            for rank, port in zip(far, await _ready(entrance), strict=True):
                ways[rank] = write_address((LOOPBACK, port))
        yield ways, lost


def _own_address(launch: Launch, rank: int) -> str | None:
    """Address of a rank's host on its cable to that of rank 0; None where it is the same host."""
    lab = launch.lab
    host = 0 if lab is None else rank % lab.size
    return None if lab is None or host == 0 else lab.address(host, 0)


async def _started(
    stack: AsyncExitStack,
    launch: Launch,
    rank: int,
    name: str,
    arguments: list[str],
    key: Mapping[str, str],
    lost: asyncio.Future[str],
) -> HeldProcess:
    line = [sys.executable, "-m", *arguments]
    if launch.lab is not None:
        line = launch.lab.command(rank % launch.lab.size, line)
    process = HeldProcess(name, line, key, begin=READY)
    stack.push_async_callback(process.stop)

    def tell(ended: asyncio.Future[str]) -> None:
        if not lost.done() and not ended.cancelled():
            lost.set_result(f"lost {name}, which {ended.result()}{process.words}")

    process.lost.add_done_callback(tell)
    return process


async def _ready(process: HeldProcess) -> list[int]:
    """The ports that it says."""
    said = await process.ready(START_SECONDS + _MARGIN_SECONDS)
    return [int(port) for port in said.split(",")]
