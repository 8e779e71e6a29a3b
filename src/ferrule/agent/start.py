"""Start this host's agent in the background."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import Failure
from ferrule.errors import ClusterError
from ferrule.files import line_within

START_SECONDS = 15.0
_STOP_SECONDS = 10.0
_LOG_TAIL = 2000


def agent_command(home: ClusterHome, lock: str = "-") -> list[str]:
    """The agent of a cluster on this host. ``lock``: the descriptor of its lock; ``-``: it takes the lock itself, and
    logs to standard error, as under a service manager."""
    return [sys.executable, "-m", "ferrule.agent", str(home.directory), lock]


class AgentUp(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """What an agent says in a line when others can reach it."""

    port: int
    addresses: tuple[str, ...]


def start_agent(home: ClusterHome) -> AgentUp:
    """Start this host's agent in the background. Raises `ClusterError`."""
    lock = home.take()
    try:
        with home.log.open("ab") as log:
            process = subprocess.Popen(
                agent_command(home, str(lock)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock],
            )
    finally:
        os.close(lock)
    assert process.stdout is not None
    with process.stdout as words:
        line = line_within(words.fileno(), START_SECONDS)
    if not line:
        process.kill()
        process.wait(_STOP_SECONDS)
        said = home.log.read_text(errors="replace")[-_LOG_TAIL:].strip()
        raise ClusterError(f"the agent did not start within {START_SECONDS:g} s, or ended: {said or 'it said nothing'}")
    told = msgspec.json.decode(line, type=AgentUp | Failure)
    if isinstance(told, Failure):
        process.wait(_STOP_SECONDS)
        raise ClusterError(told.error)
    return told
