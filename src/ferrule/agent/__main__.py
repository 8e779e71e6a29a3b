"""The agent as a program: ``python -m ferrule.agent DIRECTORY LOCK_FD``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ferrule.agent.agent import Agent
from ferrule.agent.log import log_to
from ferrule.agent.start import AgentUp
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import Failure
from ferrule.errors import ClusterError, FerruleError

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Arguments: the cluster's directory, and the descriptor of its lock, or ``-`` to take it.

    Says in a line what became of it; where nothing hears that any more, it goes on.
    """
    directory = Path(arguments[0])
    home = ClusterHome(directory.name, directory.parent)
    os.umask(0o077)
    try:
        log_to(None if arguments[1] == "-" else home.log)  # a service manager keeps its own
        if arguments[1] == "-":
            home.take()
        else:
            os.set_inheritable(int(arguments[1]), False)
        asyncio.run(_run(home))
    except (FerruleError, OSError) as error:
        log.error("%s", error)
        _say(Failure(str(error), getattr(error, "code", ClusterError.code)))
        return getattr(error, "exit_code", 1)
    return 0


async def _run(home: ClusterHome) -> None:
    agent = Agent(home)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, agent.stop)
    await agent.run(lambda port, addresses: _say(AgentUp(port, tuple(addresses))))


def _say(what: AgentUp | Failure) -> None:
    with suppress(OSError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(what) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
