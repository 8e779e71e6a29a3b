"""The processes that an agent runs for others: ranks of models, each tied to the agent and to whoever asked for it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrule.cluster.local import OUTER_JOB
from ferrule.cluster.process import exit_fds, has_exited, signal_group
from ferrule.errors import ClusterError
from ferrule.tied import tied

log = logging.getLogger(__name__)

CONTROL = "{control}"
"""In a command: the number of the descriptor of the process's control socket."""
GRACE_SECONDS = 0.5
TAIL_LINES = 12
_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_MAX_PROCESSES = 256
_LOOK_SECONDS = 0.05

Exited = Callable[[int, int, str], None]
"""Called with the rank, its status as in `subprocess`, and the last lines of its output."""


@dataclass(frozen=True)
class Order:
    """A process to start: ``arguments`` of this Python, ``env`` beside the agent's. ``listen``: with a socket that
    listens at a free port of all addresses, as rank 0 of a group needs."""

    job: str
    rank: int
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    listen: bool

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Order:
        """Raises `ClusterError`."""
        try:
            env = {str(name): str(value) for name, value in dict(fields["env"]).items()}
            arguments = tuple(map(str, fields["arguments"]))
            made = cls(str(fields["job"]), int(fields["rank"]), arguments, env, bool(fields["listen"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ClusterError(f"that is no order to start a process: {error!r}") from None
        if not _NAME.fullmatch(made.job) or made.rank < 0:
            raise ClusterError(f"{made.job!r} rank {made.rank} cannot name a process")
        return made


class Job:
    """Ranks of one job on this host. ``on_exit`` is called once for each that ends. Use it from the main thread."""

    def __init__(self, name: str, logs: Path, on_exit: Exited) -> None:
        if not _NAME.fullmatch(name):
            raise ClusterError(f"{name!r} cannot name a job")
        self.name = name
        self._logs = logs / name
        self._on_exit = on_exit
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running.values()]

    def start(self, order: Order, control: socket.socket, listener: socket.socket | None) -> int:
        """Start one rank, which inherits both sockets; they remain the caller's to close. Returns its process id."""
        if order.rank in self._running or len(self._running) >= _MAX_PROCESSES:
            raise ClusterError(f"rank {order.rank} of {order.job} runs already")
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        env = {name: value for name, value in os.environ.items() if name not in OUTER_JOB} | dict(order.env)
        fds = [control.fileno()]
        if listener is not None:
            env["FERRULE_LISTEN_FD"] = str(listener.fileno())
            fds.append(listener.fileno())
        arguments = [each.replace(CONTROL, str(control.fileno())) for each in order.arguments]
        with (self._logs / f"rank-{order.rank}.log").open("wb") as output:
            process = subprocess.Popen(
                tied([sys.executable, *arguments]),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                process_group=0,
            )
        self._running[order.rank] = process
        when_ended(process, lambda: self._ended(order.rank))
        return process.pid

    def _ended(self, rank: int) -> None:
        process = self._running.pop(rank)
        signal_group(process.pid, signal.SIGKILL)  # its own children; its number is not free before `wait`
        self._on_exit(rank, process.wait(), tail(self._logs / f"rank-{rank}.log"))

    async def end(self, grace: float = GRACE_SECONDS) -> None:
        """End every rank: SIGTERM, and SIGKILL after ``grace`` seconds. Removes their logs. Safe to call twice."""
        for process in self._running.values():
            signal_group(process.pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + grace
        while self._running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for process in self._running.values():
            signal_group(process.pid, signal.SIGKILL)
        while self._running:
            await asyncio.sleep(0.01)  # the kernel ends what is killed, and its descriptor tells `_ended`
        shutil.rmtree(self._logs, ignore_errors=True)


def when_ended(process: subprocess.Popen[bytes], then: Callable[[], None]) -> None:
    """Call ``then`` from the event loop when our child has ended, and is not reaped yet."""
    loop = asyncio.get_running_loop()
    (watch,) = exit_fds([process.pid])
    if watch is None:  # no such thing on this system

        def look() -> None:
            if has_exited(process):
                then()
            else:
                loop.call_later(_LOOK_SECONDS, look)

        loop.call_soon(look)
        return

    def ended(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        then()

    loop.add_reader(watch, ended, watch)


def listener_for_ranks() -> socket.socket:
    """At a free port of all addresses, IPv6 ones too where there are any. The fabric lets nobody in without the key."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", 0), backlog=128)


def tail(file: Path) -> str:
    lines: Sequence[str] = file.read_text(errors="replace").splitlines() if file.exists() else ()
    return "\n".join(lines[-TAIL_LINES:])
