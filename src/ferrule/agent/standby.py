"""Standby processes that an agent keeps for ranks that start later: they have done their imports, most of a start.

They belong to the connection on which they were asked for, and end with it; any order that fits may have them.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from ferrule.cluster.messages import CONTROL
from ferrule.errors import ClusterError
from ferrule.process import signal_group, start, when_ended
from ferrule.process.lifeline import LIFELINE
from ferrule.process.standby import READY

log = logging.getLogger(__name__)

STANDBY = ("-m", "ferrule.process.standby")
MOST = 16
"""Standby processes of one model on one host."""
_CHUNK = 1 << 12
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


@dataclass(frozen=True)
class Kind:
    """Kind of standby processes: processes of one ``module`` with the same environment from their start on."""

    module: str
    env: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, module: str, env: Mapping[str, str]) -> Kind:
        return cls(module, tuple(sorted(env.items())))

    @classmethod
    def of_command(cls, arguments: Sequence[str], env: Mapping[str, str]) -> Kind | None:
        """Of a command that a standby process can take over."""
        module = len(LIFELINE)
        if tuple(arguments[:module]) != LIFELINE or len(arguments) < module + 2 or arguments[-1] != CONTROL:
            return None
        return cls.of(arguments[module], env)


class StandbyProcess:
    """A process that waits. ``on_end`` is called with its status when it has ended."""

    def __init__(self, kind: Kind, environment: Mapping[str, str], on_end: Callable[[int], None]) -> None:
        self.kind, self.on_end = kind, on_end
        self._ready = False
        self.line, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = start(
                    [sys.executable, *STANDBY, kind.module, str(theirs.fileno())],
                    env=dict(environment) | dict(kind.env),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except OSError:
                self.line.close()
                raise
        self.line.setblocking(False)
        when_ended(self.process, lambda code: self.on_end(code))

    @property
    def ready(self) -> bool:
        """Whether it has done its imports."""
        with suppress(OSError):  # also where it has said nothing new
            self._ready |= READY in self.line.recv(_CHUNK)
        return self._ready

    @property
    def runs(self) -> bool:
        """Whether it has not ended and is not stopped. One that still imports counts: it is ahead of a new process."""
        with suppress(psutil.Error):
            return psutil.Process(self.process.pid).status() not in _STOPPED
        return False

    def kill(self) -> None:
        self.line.close()
        signal_group(self.process.pid, signal.SIGKILL)


class StandbyProcesses:
    """Of all connections. ``environment``: what they inherit. Used from one event loop in the main thread."""

    def __init__(self, environment: Callable[[], Mapping[str, str]]) -> None:
        self._environment = environment
        self._kept: dict[object, list[StandbyProcess]] = {}

    def keep(self, holder: object, kind: Kind, count: int) -> tuple[int, int]:
        """Have ``count`` of a kind for ``holder``; those of another kind end.

        Returns how many there are, and how many of them are ready. Raises `ClusterError`.
        """
        if not 0 <= count <= MOST:
            raise ClusterError(f"{count} standby processes are not kept, only up to {MOST}")
        kept = self._kept.setdefault(holder, [])
        unwanted = [standby for standby in kept if standby.kind != kind]
        unwanted += [standby for standby in kept if standby.kind == kind][count:]
        for standby in unwanted:
            kept.remove(standby)
            standby.kill()
        while len(kept) < count:
            try:
                kept.append(self._started(holder, kind))
            except OSError as error:
                log.warning("no standby process can be started: %s", error)
                break
        return len(kept), sum(standby.ready for standby in kept)

    def release(self, holder: object) -> None:
        """End those of ``holder``."""
        for standby in self._kept.pop(holder, []):
            standby.kill()

    def take(self, kind: Kind) -> StandbyProcess | None:
        """One that fits and runs: the caller's from now on. Others that fit are ended."""
        fitting = [(kept, each) for kept in self._kept.values() for each in kept if each.kind == kind]
        for kept, standby in fitting:
            kept.remove(standby)
            if standby.runs:
                return standby
            standby.kill()
        return None

    @property
    def pids(self) -> list[int]:
        return [standby.process.pid for kept in self._kept.values() for standby in kept]

    def _started(self, holder: object, kind: Kind) -> StandbyProcess:
        def ended(code: int) -> None:
            standby.line.close()
            if standby in self._kept.get(holder, []):
                self._kept[holder].remove(standby)

        standby = StandbyProcess(kind, self._environment(), ended)
        return standby
