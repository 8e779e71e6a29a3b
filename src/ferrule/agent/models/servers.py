"""The models that should be up, and the processes that serve them on this host: one for each, kept running.

A record of kind ``model`` says what is wanted and which host serves it, with which ``port``. Where that host has been
silent for `TAKE_OVER_SECONDS`, the first of the others takes it over; the old one has it back when it returns, at once
if it was cut off and still serves it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrule.agent.jobs import tail
from ferrule.cluster.connection import Message
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.records import MODEL
from ferrule.cluster.state import ClusterState
from ferrule.errors import ClusterError
from ferrule.process import end_groups, signal_group, start, when_ended

log = logging.getLogger(__name__)

TAKE_OVER_SECONDS = 5.0
GIVE_BACK_SECONDS = 3.0
"""How long a host that took a model over and cannot serve it waits before it gives it back."""
_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0
_KILLED_SECONDS = 1.0
_PAUSES = (0.5, 2.0, 5.0, 15.0, 30.0)
"""Before a process that ended is started again; the first again after it was ready."""
READY = "ready"
_SERVING = (READY, "recovering")
"""Clients are connected, or will soon have their next token."""


@dataclass
class _Served:
    """``wanted``: the record's value. ``state``: what the process told last."""

    wanted: Mapping[str, Any]
    process: subprocess.Popen[bytes] | None = None
    state: dict[str, Any] = field(default_factory=lambda: {"state": "starting"})
    failures: int = 0
    again: float = 0.0
    """When to start it again, by `time.monotonic`."""
    since: float = field(default_factory=time.monotonic)


def server_command(home: ClusterHome, name: str) -> list[str]:
    """What serves a model: a room above this one."""
    return [sys.executable, "-m", "ferrule.agent.models.server", str(home.directory), name]


class ModelServers:
    """Used from one event loop in the main thread: what it starts dies with that. ``command``: what to start."""

    def __init__(
        self,
        home: ClusterHome,
        cluster: ClusterState,
        command: Callable[[ClusterHome, str], list[str]] = server_command,
    ) -> None:
        self._home, self._cluster, self._command = home, cluster, command
        self._served: dict[str, _Served] = {}
        self._ending: dict[subprocess.Popen[bytes], str] = {}
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="servers")

    async def close(self) -> None:
        """End every process that serves a model here."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._served):
            self._end(name)
        await end_groups(lambda: [process.pid for process in self._ending], _END_SECONDS, _KILLED_SECONDS)

    def look(self) -> None:
        """Something has changed: a record, or who is there."""
        self._news.set()

    def told(self, name: str, state: Mapping[str, Any]) -> None:
        """What the process that serves ``name`` tells of itself."""
        server = self._served.get(name)
        if server is not None:
            server.state = dict(state)
            server.since = time.monotonic()
            if state.get("state") == READY:
                server.failures = 0

    def status(self) -> list[Message]:
        """Of the models that are served here, or still end."""
        return [
            {"name": name, "wanted": dict(server.wanted), "pid": server.process.pid if server.process else None}
            | {"failures": server.failures, **server.state}
            for name, server in self._served.items()
        ] + [
            {"name": name, "wanted": {}, "pid": process.pid, "state": "ending"}
            for process, name in self._ending.items()
            if name not in self._served
        ]

    async def _keep(self) -> None:
        while True:
            try:
                self.decide()
                self._apply()
            except ClusterError as error:
                log.error("models stay where they are for now: %s", error)
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    def decide(self) -> None:
        """Which models should move to or from this host."""
        cluster = self._cluster
        for name, wanted in cluster.knowledge.present(MODEL).items():
            host, owner = wanted.get("host"), wanted.get("owner")
            server = self._served.get(name)
            serving = server is not None and server.state.get("state") in _SERVING
            if host == cluster.host:
                cannot = server is not None and not serving and time.monotonic() - server.since > GIVE_BACK_SECONDS
                if owner != host and isinstance(owner, str) and cluster.is_up(owner) and cannot:
                    cluster.write(MODEL, name, {**wanted, "host": owner})
            elif owner == cluster.host and serving:
                log.info("%s is served here still: taking it back", name)
                cluster.write(MODEL, name, {**wanted, "host": cluster.host})
            elif isinstance(host, str) and cluster.silent_seconds(host) > TAKE_OVER_SECONDS and self._is_first():
                log.info("the host that served %s is gone: taking it over", name)
                cluster.write(MODEL, name, {**wanted, "host": cluster.host})

    def _is_first(self) -> bool:
        """Whether this host is the first, by id, of those that answer."""
        cluster = self._cluster
        return cluster.host == min((host for host in cluster.knowledge.members if cluster.is_up(host)), default=None)

    def _apply(self) -> None:
        wanted = {
            name: value
            for name, value in self._cluster.knowledge.present(MODEL).items()
            if value.get("host") == self._cluster.host
        }
        for name, server in list(self._served.items()):
            if wanted.get(name) != server.wanted:
                self._end(name)
        for name, value in wanted.items():
            server = self._served.setdefault(name, _Served(value))
            if server.process is None and time.monotonic() >= server.again and name not in self._ending.values():
                try:  # not beside the old one, which has the port and the memory
                    self._begin(name, server)
                except OSError as error:
                    self._failed(name, server, f"it cannot be started: {error}")

    def _begin(self, name: str, server: _Served) -> None:
        folder = self._home.directory / "models"
        folder.mkdir(mode=0o700, exist_ok=True)
        log_file = folder / f"{name.replace('/', '--')}.log"
        with log_file.open("wb") as output:
            process = start(self._command(self._home, name), stdout=output, stderr=subprocess.STDOUT)
        server.process = process

        def ended() -> None:
            signal_group(process.pid, signal.SIGKILL)
            code = process.wait()
            if self._ending.pop(process, None) is not None:
                self.look()  # another may wait for its place
                return
            last = tail(log_file).strip().rpartition("\n")[2]
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            self._failed(name, server, last or f"the process that serves it {how}")

        when_ended(process, ended)

    def _failed(self, name: str, server: _Served, detail: str) -> None:
        server.process = None
        server.again = time.monotonic() + _PAUSES[min(server.failures, len(_PAUSES) - 1)]
        server.failures += 1
        server.since = time.monotonic()
        server.state = {"state": "failed", "detail": detail}
        log.warning("%s is not served: %s", name, detail)

    def _end(self, name: str) -> None:
        server = self._served.pop(name)
        if server.process is not None:
            process = server.process
            self._ending[process] = name
            signal_group(process.pid, signal.SIGTERM)
            asyncio.get_running_loop().call_later(_END_SECONDS, self._kill, process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process in self._ending:
            signal_group(process.pid, signal.SIGKILL)  # it is not reaped, so its number is still its own
