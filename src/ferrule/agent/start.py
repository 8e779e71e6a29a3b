"""Start this host's agent in the background."""

from __future__ import annotations

import os
import sys

import msgspec

from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import Failure
from ferrule.errors import ClusterError
from ferrule.process import NotReady, start_until_ready

START_SECONDS = 15.0
_STOP_SECONDS = 10.0


def agent_command(home: ClusterHome, lock: str = "-") -> list[str]:
    """The agent of a cluster on this host. ``lock``: the descriptor of its lock; ``-``: it takes the lock itself, and
    logs to standard error, as under a service manager."""
    return [sys.executable, "-m", "ferrule.agent", str(home.directory), lock]


class AgentUp(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Message of an agent, in a line, when others can reach it."""

    port: int
    addresses: tuple[str, ...]


def start_agent(home: ClusterHome) -> AgentUp:
    """Start this host's agent in the background. Raises `ClusterError`."""
    lock = home.take()
    try:
        process, line = start_until_ready(
            agent_command(home, str(lock)), home.log, START_SECONDS, outlive=True, pass_fds=[lock]
        )
    except NotReady as said:
        raise ClusterError(f"the agent did not start within {START_SECONDS:g} s, or ended: {said}") from None
    finally:
        os.close(lock)
    told = msgspec.json.decode(line, type=AgentUp | Failure)
    if isinstance(told, Failure):
        process.wait(_STOP_SECONDS)
        raise ClusterError(told.error)
    return told
