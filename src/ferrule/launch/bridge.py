"""What a launcher runs to talk to a supervisor on a host of the cluster: by that host's agent, which starts it.

Arguments: the cluster's directory here, and the host as JSON. When it ends, however it ends, so do the ranks there.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
from pathlib import Path

from ferrule.cluster.client import connect_member
from ferrule.cluster.connection import Connection
from ferrule.cluster.handshake import Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import CONTROL
from ferrule.cluster.records import Member
from ferrule.errors import AuthError, ClusterError
from ferrule.launch.pump import start_opening, start_sealing
from ferrule.launch.sealed import DOWN, UP, Opener, Sealer
from ferrule.secure import derived_key

START_SECONDS = 10.0
END_SECONDS = 3.0
"""How long the supervisor has to end its ranks when the launcher is gone."""
FAR_END = ("-P", "-m", "ferrule.launch.far_end", CONTROL)


async def run(home: ClusterHome, member: Member) -> int:
    """Until the supervisor has ended; its exit code. Raises `ClusterError`, `AuthError`, `OSError`, `TimeoutError`."""
    job = f"launch-{secrets.token_hex(16)}"
    secret = derived_key(home.key, f"job {job}")
    life, _ = await connect_member(home, member, Purpose.ASK)
    try:
        await life.ask({"do": "job", "job": job, "grace": END_SECONDS}, START_SECONDS)
        with await _start(home, member, job) as line:
            # What is sent before the supervisor has the connection would still be read by its agent.
            await asyncio.to_thread(line.recv, 1, socket.MSG_PEEK)
            line.settimeout(None)
            start_sealing(sys.stdin.fileno(), line, Sealer(secret, DOWN))
            opening = start_opening(line, sys.stdout.fileno(), Opener(secret, UP))
            while (told := await life.receive()) is not None:
                if "exit" in told:
                    await asyncio.to_thread(opening.join, START_SECONDS)
                    if told["code"] and told["tail"]:
                        print(told["tail"], file=sys.stderr)  # noqa: T201 - to the launcher
                    return int(told["code"]) % 256
    finally:
        life.close()
    raise ClusterError("its agent ended, or the way to it is cut")


async def _start(home: ClusterHome, member: Member, job: str) -> socket.socket:
    connection: Connection
    connection, _ = await connect_member(home, member, Purpose.START)
    try:
        order = {"job": job, "rank": 0, "world_size": 1, "arguments": FAR_END, "env": {}, "meet": []}
        await connection.ask(order, START_SECONDS)
        connection.pause()
        await connection.send({"go": True})
        line = await connection.detach()
    finally:
        connection.close()
    line.settimeout(START_SECONDS)
    return line


def main(directory: str, member: str) -> int:
    folder = Path(directory)
    try:
        return asyncio.run(run(ClusterHome(folder.name, folder.parent), Member.from_json(json.loads(member))))
    except (ClusterError, AuthError, OSError, TimeoutError) as error:
        print(error or "its agent does not answer in time", file=sys.stderr)  # noqa: T201 - to the launcher
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
