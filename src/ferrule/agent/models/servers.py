"""The model servers of this host: a process for each model that the cluster wants served here, kept running.

What to do is decided in `ferrule.agent.models.desired`; here it is done.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import assert_never

from ferrule.agent.control_loop import ControlLoop
from ferrule.agent.jobs import tail
from ferrule.agent.models.desired import (
    Accept,
    Action,
    Event,
    Failed,
    Move,
    Server,
    Start,
    Started,
    Stop,
    Told,
    View,
    after,
    plan,
)
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.reports import ModelStatus, ServerState
from ferrule.cluster.state import ClusterState
from ferrule.errors import ClusterError, ConfigError
from ferrule.installation import require
from ferrule.process import end_groups, last_line, signal_group, start, when_ended

log = logging.getLogger(__name__)

_END_SECONDS = 5.0
_KILLED_SECONDS = 1.0


def server_command(home: ClusterHome, name: str) -> list[str]:
    return [sys.executable, "-m", "ferrule.agent.models.process", str(home.directory), name]


class ModelServers(ControlLoop):
    """Used from one event loop in the main thread: what it starts dies with that. ``command``: what to start."""

    def __init__(
        self,
        home: ClusterHome,
        cluster: ClusterState,
        command: Callable[[ClusterHome, str], list[str]] = server_command,
    ) -> None:
        super().__init__()
        self._home, self._cluster, self._command = home, cluster, command
        self._servers: dict[str, Server] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ending: dict[subprocess.Popen[bytes], str] = {}

    async def close(self) -> None:
        """End every model server of this host."""
        await self.stop()
        for name in list(self._servers):
            self._end(name)
        await end_groups(lambda: [process.pid for process in self._ending], _END_SECONDS, _KILLED_SECONDS)

    def told(self, name: str, state: ServerState) -> None:
        """Note what the server of ``name`` tells of itself."""
        self._happened(name, Told(state))

    def status(self) -> tuple[ModelStatus, ...]:
        """Of the models that are served here, or still end."""
        served = [
            ModelStatus(
                **vars(server.told),
                name=name,
                wanted=server.desired,
                pid=self._processes[name].pid if name in self._processes else None,
                failures=server.failures,
            )
            for name, server in self._servers.items()
        ]
        ending = [(name, process.pid) for process, name in self._ending.items() if name not in self._servers]
        return (*served, *(ModelStatus(name=name, wanted=None, pid=pid, state="ending") for name, pid in ending))

    async def reconcile(self) -> None:
        for action in self.planned():
            try:
                self._do(action)
            except ClusterError as error:
                log.error("models stay where they are for now: %s", error)
                return

    def planned(self) -> list[Action]:
        """Actions to be done now."""
        cluster, desired = self._cluster, self._cluster.knowledge.models
        up = {host for host in cluster.knowledge.members if cluster.is_up(host)}
        silent = {model.host: cluster.silent_seconds(model.host) for model in desired.values()}
        without = {host for host, member in cluster.knowledge.members.items() if member.install_engine}
        view = View(cluster.host, up, silent, without)
        return plan(self._servers, self._ending.values(), desired, view, time.monotonic())

    def _do(self, action: Action) -> None:
        match action:
            case Move(name, desired, why):
                log.info("%s: %s", name, why)
                self._cluster.write_model(name, desired)
            case Stop(name):
                self._end(name)
            case Accept(name, desired):
                self._servers[name] = Server(desired, time.monotonic())
            case Start(name):
                try:
                    self._begin(name)
                except (OSError, ConfigError) as error:
                    self._failed(name, f"it cannot be started: {error}")
            case _:
                assert_never(action)

    def _happened(self, name: str, event: Event) -> None:
        if name in self._servers:
            self._servers[name] = after(self._servers[name], event, time.monotonic())

    def _begin(self, name: str) -> None:
        require("serve", "a model server")
        folder = self._home.directory / "models"
        folder.mkdir(mode=0o700, exist_ok=True)
        log_file = folder / f"{name.replace('/', '--')}.log"
        with log_file.open("wb") as output:
            process = start(self._command(self._home, name), stdout=output, stderr=subprocess.STDOUT)
        self._processes[name] = process
        self._happened(name, Started())

        def ended(code: int) -> None:
            if self._ending.pop(process, None) is not None:
                self.look()  # another may wait for its place
                return
            del self._processes[name]
            last = last_line(tail(log_file))
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            self._failed(name, last or f"the process that serves it {how}")

        when_ended(process, ended)

    def _failed(self, name: str, detail: str) -> None:
        self._happened(name, Failed(detail))
        log.warning("%s is not served: %s", name, detail)

    def _end(self, name: str) -> None:
        del self._servers[name]
        process = self._processes.pop(name, None)
        if process is not None:
            self._ending[process] = name
            signal_group(process.pid, signal.SIGTERM)
            asyncio.get_running_loop().call_later(_END_SECONDS, self._kill, process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process in self._ending:
            signal_group(process.pid, signal.SIGKILL)  # it is not reaped, so its number is still its own
