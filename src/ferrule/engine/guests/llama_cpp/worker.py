"""The program that runs an ``rpc-server`` on a host, for llama.cpp on this or another one:

    python -m ferrule.engine.guests.llama_cpp.worker THREADS ADDRESS|- [DESCRIPTOR]

``rpc-server`` asks nobody who they are, so it listens on loopback only. With an ``ADDRESS`` this program listens there
for who has the key that ``FERRULE_TUNNEL_KEY`` says, and joins them to it. It says `READY` and the port on its standard
output, or to the socket ``DESCRIPTOR``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

from ferrule.cluster.tunnel import LOOPBACK, far_end
from ferrule.config import without_secrets
from ferrule.engine.guests.guest import on_path
from ferrule.process import tied

WORKER_NAMES: Final = ("rpc-server", "ggml-rpc-server")
"""It was renamed."""
READY: Final = "ferrule: ready at "
KEY: Final = "FERRULE_TUNNEL_KEY"
NO_ADDRESS: Final = "-"
START_SECONDS: Final = 60.0
_LOOK_SECONDS = 0.02


def free_port() -> int:
    """Port of loopback that nobody listens at. Another program may take it meanwhile; then the start fails."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def say_ready(ports: object, descriptor: int = 1) -> None:
    """In one write: others print on the same stream."""
    os.write(descriptor, f"{READY}{ports}\n".encode())


async def run(threads: str, address: str, descriptor: int) -> int:
    key = bytes.fromhex(os.environ.pop(KEY))
    program = on_path(*WORKER_NAMES)
    if program is None:
        sys.stderr.write(f"{WORKER_NAMES[0]} of llama.cpp is not on the PATH of {socket.gethostname()}\n")
        return 1
    port = free_port()
    command = [str(program.path), "--host", LOOPBACK, "--port", str(port), "--threads", threads]
    server = await asyncio.create_subprocess_exec(
        *tied(command), stdin=asyncio.subprocess.DEVNULL, env=without_secrets(os.environ)
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while server.returncode is None and not await _listens(port):
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        server.kill()
        sys.stderr.write(f"{program.path} did not listen within {START_SECONDS:.0f} s\n")
        return 1
    if server.returncode is None and address != NO_ADDRESS:
        # A link-local address has another interface here than there; whoever comes has to prove the key anyway.
        listener = await far_end(key, ("::" if "%" in address else address, 0), (LOOPBACK, port))
        port = listener.sockets[0].getsockname()[1]
    if server.returncode is None:
        say_ready(port, descriptor)
    return await server.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


def main(arguments: Sequence[str]) -> int:
    threads, address, *descriptor = arguments
    code = asyncio.run(run(threads, address, int(descriptor[0]) if descriptor else 1))
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
