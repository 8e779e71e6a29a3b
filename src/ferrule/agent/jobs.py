"""The processes that an agent runs for others: ranks of models, each tied to the agent and to its caller."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ferrule.agent.standby import StandbyProcess
from ferrule.cluster.messages import CONTROL, StartProcess
from ferrule.cluster.peers import dial_addresses, interface_names
from ferrule.config import outer_environment, rank_variables
from ferrule.errors import ClusterError
from ferrule.process import end_groups, signal_group, start, when_ended
from ferrule.process.lifeline import LIFELINE, LISTEN_FD
from ferrule.process.standby import Order, send_order
from ferrule.secure import derived_key, write_address

log = logging.getLogger(__name__)

GRACE_SECONDS = 0.5
KILLED_SECONDS = 5.0
"""Time limit for the kernel to end what is killed."""
TAIL_LINES = 12
_TAIL_BYTES = 1 << 14
_MAX_PROCESSES = 256

Exited = Callable[[int, int, str], None]
"""Called with the rank, its status as in `subprocess`, and the last lines of its output."""


class Job:
    """Ranks of one job on this host. ``on_exit`` is called once for each that ends. Use it from the main thread.

    ``ports``: where those ranks of it listen that `reserve` was called for, by rank.
    """

    def __init__(self, name: str, key: bytes, logs: Path, on_exit: Exited) -> None:
        self.name = name
        self._key = derived_key(key, f"job {name}")
        self._logs = logs / name
        self._on_exit = on_exit
        self._listeners: dict[int, socket.socket] = {}
        self._ports: dict[int, int] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._over = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running.values()]

    def reserve(self, rank: int) -> int:
        """A port for a rank that is started later: it is listened at from now on."""
        if rank not in self._ports:
            self._listeners[rank] = listener_for_ranks()
            self._ports[rank] = self._listeners[rank].getsockname()[1]
        return self._ports[rank]

    def start(self, order: StartProcess, control: socket.socket, standby: StandbyProcess | None = None) -> int:
        """Start one rank, which inherits ``control``; that remains the caller's to close. Returns its process id. One
        that runs already is ended, and the new one has its place: nothing is told of its end.

        ``standby``: a process that may take it over; from now on this job's to end.
        """
        try:
            return self._start(order, control, standby)
        finally:
            if standby is not None and standby.process not in self._running.values():
                standby.kill()

    def _start(self, order: StartProcess, control: socket.socket, standby: StandbyProcess | None) -> int:
        if self._over:
            raise ClusterError(f"the job {order.job!r} has ended")
        self.drop((order.rank,))
        if len(self._running) >= _MAX_PROCESSES:
            raise ClusterError(f"the job {order.job!r} has {_MAX_PROCESSES} ranks on this host already")
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        meet = map(write_address, dial_addresses(order.meet, interface_names()))
        place = rank_variables(order.rank, order.world_size, meet, self._key)
        fds = [control.fileno()]
        with ExitStack() as stack:
            if order.rank == 0 and 0 in self._listeners:  # which stays here, for the one that takes its place
                fds.append(self._listeners[0].fileno())
            elif order.rank in self._ports:
                place["FERRULE_LISTEN"] = f":{self._ports[order.rank]}"
                if (listener := self._listeners.pop(order.rank, None)) is not None:
                    listener.close()
            output = stack.enter_context((self._logs / f"rank-{order.rank}.log").open("wb")).fileno()
            if standby is not None and _took_over(standby, order, place, [output, *fds]):
                process = standby.process
                standby.on_end = partial(self._ended, order.rank, process, standby)
            else:
                process = _started(order, place, output, fds)
                when_ended(process, partial(self._ended, order.rank, process, None))
        self._running[order.rank] = process
        return process.pid

    def drop(self, ranks: Sequence[int]) -> None:
        """End these ranks at once, as far as they run; nothing is told of their end."""
        for rank in ranks:
            if (old := self._running.pop(rank, None)) is not None:
                signal_group(old.pid, signal.SIGKILL)

    def _ended(self, rank: int, process: subprocess.Popen[bytes], was: StandbyProcess | None, code: int) -> None:
        if was is not None:
            was.line.close()
        if self._running.get(rank) is not process:  # another has its place
            return
        del self._running[rank]
        self._on_exit(rank, code, tail(self._logs / f"rank-{rank}.log"))

    async def end(self, grace: float = GRACE_SECONDS) -> None:
        """End every rank: SIGTERM, and SIGKILL after ``grace`` seconds. Removes their logs. Safe to call twice.

        None is started any more from then on: nothing would end it.
        """
        self._over = True
        await end_groups(lambda: self.pids, grace, KILLED_SECONDS)
        if self._running:
            log.error("job %s: processes %s are killed and do not end; do they wait for a disk?", self.name, self.pids)
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        shutil.rmtree(self._logs, ignore_errors=True)


def _started(order: StartProcess, place: Mapping[str, str], output: int, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """``fds``: of the control socket, and of a listening one if the rank has one."""
    control, *listener = map(str, fds)
    env = {**outer_environment(), **order.env, **place}
    if listener:
        env[LISTEN_FD] = listener[0]
    arguments = [each.replace(CONTROL, control) for each in order.arguments]
    return start([sys.executable, *arguments], env=env, stdout=output, stderr=subprocess.STDOUT, pass_fds=fds)


def _took_over(standby: StandbyProcess, order: StartProcess, place: Mapping[str, str], fds: Sequence[int]) -> bool:
    """Whether a standby process has the order. ``fds``: of the log, and as in `_started`."""
    try:
        send_order(standby.line, Order(order.arguments[len(LIFELINE) + 1 : -1], dict(place)), fds)
    except OSError as error:  # it has just ended, or the order is too long for the socket
        log.warning("a standby process could not take over rank %d of %s: %s", order.rank, order.job, error)
        return False
    return True


def listener_for_ranks() -> socket.socket:
    """At a free port of all addresses, IPv6 ones too where there are any. The fabric lets none in without the key."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", 0), backlog=128)


def tail(file: Path) -> str:
    """The last lines of a log, which may be a large one; empty where it cannot be read."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = opened.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])
