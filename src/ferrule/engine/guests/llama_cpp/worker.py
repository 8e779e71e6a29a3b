"""The program that runs an ``rpc-server`` on a host, for llama.cpp on another one:

    python -m ferrule.engine.guests.llama_cpp.worker PROGRAM THREADS ADDRESS|-

``rpc-server`` asks nobody who they are, so it listens on loopback only. With an ``ADDRESS`` this program listens there
for who has the key that ``FERRULE_TUNNEL_KEY`` says, and joins them to it. It prints `READY` and the port.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from ferrule.cluster.tunnel import LOOPBACK, far_end
from ferrule.process import tied

READY = "ferrule: ready at "
KEY = "FERRULE_TUNNEL_KEY"
START_SECONDS = 60.0
_LOOK_SECONDS = 0.02


def free_port() -> int:
    """Port of loopback that nobody listens at. Another program may take it meanwhile; then the start fails."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def say_ready(ports: object) -> None:
    """In one write: others print on the same stream."""
    sys.stdout.write(f"{READY}{ports}\n")
    sys.stdout.flush()


async def run(program: str, threads: str, address: str) -> int:
    key = bytes.fromhex(os.environ.pop(KEY))
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        *tied([program, "--host", LOOPBACK, "--port", str(port), "--threads", threads]),
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while server.returncode is None and not await _listens(port):
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        server.kill()
        print(f"{program} did not listen within {START_SECONDS:.0f} s", file=sys.stderr)  # noqa: T201
        return 1
    if server.returncode is None and address != "-":
        listener = await far_end(key, (address, 0), (LOOPBACK, port))
        port = listener.sockets[0].getsockname()[1]
    say_ready(port)
    return await server.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


def main(arguments: Sequence[str]) -> int:
    program, threads, address = arguments
    code = asyncio.run(run(program, threads, address))
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
