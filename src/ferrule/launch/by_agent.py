"""Hosts of the cluster as places for ranks: a host's agent starts the supervisor, and carries its streams."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import IO

from ferrule.cluster.client import ask, connect_member
from ferrule.cluster.connection import Connection
from ferrule.cluster.handshake import Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import CONTROL, BeginJob, GetStatus, Go, RankExited, StartProcess
from ferrule.cluster.records import Member
from ferrule.errors import AuthError, ClusterError
from ferrule.launch.places import SUPERVISOR, Carrier, LocalPlace, Place
from ferrule.launch.request import chosen_of

START_SECONDS = 10.0
END_SECONDS = 3.0
"""Time limit for the supervisor to end its ranks when the launcher is gone."""


@dataclass(frozen=True)
class ClusterPlace(Place):
    """A host of the cluster."""

    home: ClusterHome
    member: Member

    def command(self) -> list[str]:
        """Command that its agent runs there."""
        return ["python", *SUPERVISOR]

    def open(self) -> Carrier:
        return AgentCarrier(self.home, self.member)

    def describe(self) -> str:
        return f"by its agent: {shlex.join(self.command())}"


def member_places(home: ClusterHome, ranks: int | None, hosts: str | None, env: Mapping[str, str]) -> list[Place]:
    """This host first; those that do not answer are left out. Raises `ClusterError` and `ConfigError`."""
    up = [member for member in ask(home, GetStatus()).hosts if member.is_up]
    members = {member.name: member for member in sorted(up, key=lambda member: member.state != "here")}
    found: list[Place] = []
    for entry in chosen_of(list(members), ranks, hosts, f"the cluster {home.name!r}"):
        entry, member = replace(entry, env={**env, **entry.env}), members[entry.name]
        here = member.host == home.settings.host
        found.append(LocalPlace(entry) if here else ClusterPlace(entry, home, member))
    return found


class AgentCarrier:
    """`Carrier` to a host of the cluster. The supervisor's job, and with it its ranks, ends with this process."""

    def __init__(self, home: ClusterHome, member: Member) -> None:
        self._home, self._member = home, member
        self._code: int | None = None
        orders, self._orders = socket.socketpair()
        told, self._told = socket.socketpair()
        errors, self._errors = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(orders.detach(), "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(told.detach(), "rb", buffering=0)
        self.stderr: IO[bytes] | None = os.fdopen(errors, "rb", buffering=0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"ranks on {member.name}", daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._code is None or self._thread.is_alive():
            raise subprocess.TimeoutExpired(self._member.name, timeout or 0)
        return self._code

    def cut(self) -> None:
        def cancel() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(cancel)

    def _run(self) -> None:
        code, why = 1, ""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                code, why = runner.run(self._carry())
        except (ClusterError, AuthError, OSError, TimeoutError) as error:
            why = str(error) or "its agent does not answer in time"
        except asyncio.CancelledError:
            why = "it was given up"
        finally:
            self._code = code
            with os.fdopen(self._errors, "wb") as errors:
                errors.write(why.encode())
            self._orders.close()
            self._told.close()

    async def _carry(self) -> tuple[int, str]:
        """Until the supervisor has ended: its exit code, and its last words where that is not 0."""
        job = f"launch-{secrets.token_hex(16)}"
        life = await connect_member(self._home, self._member, Purpose.ASK)
        try:
            await life.ask(BeginJob(job, grace=END_SECONDS), START_SECONDS)
            line = await self._start(job)
            # Both halves of each are kept: a writer that is dropped closes its socket.
            orders, told = [await asyncio.open_connection(sock=sock) for sock in (self._orders, self._told)]
            await line.carry(orders[0], told[1])
            while (message := await life.receive()) is not None:
                if isinstance(message, RankExited):
                    return message.code % 256, message.tail if message.code else ""
        finally:
            life.close()
        raise ClusterError("its agent ended, or the connection to it is cut")

    async def _start(self, job: str) -> Connection:
        line = await connect_member(self._home, self._member, Purpose.START)
        try:
            arguments = (*SUPERVISOR, "--control", CONTROL, line.local_address, line.peer_address)
            await line.ask(StartProcess(job, 0, 1, arguments, {}), START_SECONDS)
            await line.send(Go())
        except BaseException:
            line.close()
            raise
        return line
