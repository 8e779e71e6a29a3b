"""An ``rpc-server`` for each stage of a plan, here, on hosts of the cluster or of a lab, and the ways to them."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from ferrule.cluster.messages import CONTROL
from ferrule.cluster.tunnel import LOOPBACK
from ferrule.engine.guests.guest import Launch
from ferrule.engine.guests.held import HeldProcess
from ferrule.engine.guests.llama_cpp.worker import KEY, NO_ADDRESS, READY, START_SECONDS
from ferrule.engine.guests.members import ADDRESS, MemberProcess
from ferrule.secure import Address, write_address

_MODULE: Final = "ferrule.engine.guests.llama_cpp.worker"
_ENTRANCE: Final = "ferrule.engine.guests.llama_cpp.entrance"
_MARGIN_SECONDS: Final = 30.0
"""For the imports of a worker's program."""

Process = HeldProcess | MemberProcess


@asynccontextmanager
async def workers(launch: Launch) -> AsyncIterator[tuple[list[str], asyncio.Future[str]]]:
    """Addresses of the `rpc-server`s of the stages, as llama-server reaches them, and what is done once one of them has
    ended. Raises `EngineError`."""
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    key = {KEY: secrets.token_hex(32)}
    async with AsyncExitStack() as stack:
        started = [await _worker(stack, launch, rank, key, lost) for rank in range(len(launch.plan.stages))]
        ways: list[Address] = []
        for process, address in started:
            ways.append((address or LOOPBACK, int(await _ready(process))))
        far = [rank for rank, (_, address) in enumerate(started) if address is not None]
        if far:
            places = [write_address(ways[rank]) for rank in far]
            entrance = _held(launch, 0, "the way to other hosts", [_ENTRANCE, *places], key)
            _follow(stack, entrance, lost)
            for rank, port in zip(far, (await _ready(entrance)).split(","), strict=True):
                ways[rank] = (LOOPBACK, int(port))
        yield [write_address(way) for way in ways], lost


async def _worker(
    stack: AsyncExitStack, launch: Launch, rank: int, key: Mapping[str, str], lost: asyncio.Future[str]
) -> tuple[Process, str | None]:
    """The program of a rank's worker, and the address of its host; None where llama-server is on the same."""
    name, threads = f"rpc-server of rank {rank}", str(launch.threads)
    member = None if launch.members is None else launch.members.host(rank)
    process: Process
    if launch.members is not None and member is not None:
        line = ["-m", _MODULE, threads, ADDRESS, CONTROL]
        process = await MemberProcess.start(launch.members, member, f"{name} on {member.name}", line, key)
        address: str | None = process.address
    else:
        host = 0 if launch.lab is None else rank % launch.lab.size
        address = None if launch.lab is None or host == 0 else launch.lab.address(host, 0)
        process = _held(launch, rank, name, [_MODULE, threads, address or NO_ADDRESS], key)
    _follow(stack, process, lost)
    return process, address


def _held(launch: Launch, rank: int, name: str, arguments: list[str], key: Mapping[str, str]) -> HeldProcess:
    line = [sys.executable, "-m", *arguments]
    if launch.lab is not None:
        line = launch.lab.command(rank % launch.lab.size, line)
    return HeldProcess(name, line, key, begin=READY)


def _follow(stack: AsyncExitStack, process: Process, lost: asyncio.Future[str]) -> None:
    """End it with ``stack``, and tell ``lost`` where it ends before."""

    def tell(ended: asyncio.Future[str]) -> None:
        if not lost.done() and not ended.cancelled():
            lost.set_result(f"lost {process.name}, which {ended.result()}{process.words}")

    stack.push_async_callback(process.stop)
    process.lost.add_done_callback(tell)


async def _ready(process: Process) -> str:
    """What it says when it is ready: its ports."""
    seconds = START_SECONDS + _MARGIN_SECONDS
    return await (process.ready(seconds) if isinstance(process, HeldProcess) else process.ready(READY, seconds))
