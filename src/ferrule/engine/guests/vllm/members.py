"""vLLM on hosts of the cluster: here its server, and on each other one a process that its agent has started."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from ferrule.cluster.client import connect_member
from ferrule.cluster.handshake import Purpose
from ferrule.cluster.records import Member
from ferrule.config import outer_environment
from ferrule.engine.guests.guest import Command, Launch
from ferrule.engine.guests.members import MemberProcess, Members
from ferrule.engine.guests.vllm import nodes
from ferrule.engine.guests.vllm.launched import KEY, address_toward, interface_of
from ferrule.engine.guests.vllm.nodes import Node, Work
from ferrule.errors import AuthError, ClusterError, ModelUnavailable, PlanError

_MODULE = "ferrule.engine.guests.vllm.launched"
_OF_HERE = ("FERRULE_KEY", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "VLLM_CPU_OMP_THREADS_BIND")
"""What each host finds out by itself, or is told under another name."""


@asynccontextmanager
async def begun(
    launch: Launch, members: Members, hosts: Sequence[Node], work_at: Callable[[tuple[str, int]], Work]
) -> AsyncIterator[Command]:
    """The command of the server here, while the other hosts' processes run. ``work_at``: what all run, who meet at an
    address and a port of this host. Raises `PlanError` and `ModelUnavailable`."""
    others = _others(members, len(hosts))
    address = await _address(members, others[0])
    work, key = work_at((address, _free_port(address))), nodes.new_key()
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    own = [replace(hosts[0], address=address, interface=interface_of(address) or hosts[0].interface), *hosts[1:]]

    async with AsyncExitStack() as stack:
        for number, member in enumerate(others, 1):
            name, words = f"vllm on {member.name}", ["-m", _MODULE, *nodes.options(work)]
            process = await MemberProcess.start(members, member, name, words, _variables(work, own, number, key))
            stack.push_async_callback(process.stop)
            process.lost.add_done_callback(partial(_tell, lost, process))
        line = nodes.line(launch.program.path, work, own, 0)
        yield Command(line, nodes.environment(own[0], work, key, outer_environment()), lost)


def _tell(lost: asyncio.Future[str], process: MemberProcess, ended: asyncio.Future[str]) -> None:
    if not lost.done() and not ended.cancelled():
        lost.set_result(f"lost {process.name}, which {ended.result()}{process.words}")


def _others(members: Members, count: int) -> list[Member]:
    first, *rest = members.hosts[:count]
    others = [each for each in rest if each is not None]
    if first is not None or len(others) < count - 1 or len({each.name for each in others}) < len(others):
        raise PlanError(
            "--engine vllm: the first of --hosts is this one, where its server runs, and each is there once"
        )
    return others


async def _address(members: Members, member: Member) -> str:
    """This host's, on the way to ``member``."""
    try:
        line = await connect_member(members.home, member, Purpose.ASK)
        try:
            return address_toward(line.peer_address)
        finally:
            line.close()
    except (ClusterError, AuthError, OSError, TimeoutError) as error:
        raise ModelUnavailable(f"{member.name} cannot run vllm: {str(error) or 'no answer in time'}") from None


def _free_port(address: str) -> int:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        return int(listener.getsockname()[1])


def _variables(work: Work, hosts: Sequence[Node], number: int, key: str) -> dict[str, str]:
    """What `launched` is told: as `ferrule launch` would, and what vLLM has to know beside that."""
    assert work.meeting is not None
    found = nodes.environment(hosts[number], work, "", os.environ)
    told = {name: value for name, value in found.items() if value is not None and name not in _OF_HERE}
    return told | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "RANK": str(number),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": work.meeting[0],
        "MASTER_PORT": str(work.meeting[1]),
        KEY: key,
    }
