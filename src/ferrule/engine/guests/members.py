"""A process of a guest on another host of the cluster: its agent starts it, and ends it with the connection to us."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from ferrule.cluster.client import connect_member
from ferrule.cluster.connection import Connection
from ferrule.cluster.handshake import Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import BeginJob, Go, RankExited, StartProcess
from ferrule.cluster.records import Member
from ferrule.errors import AuthError, ClusterError, EngineError, ModelUnavailable

START_SECONDS = 10.0
END_SECONDS = 1.0
"""That its processes have to end by themselves once we are gone."""
ADDRESS = "{address}"
"""In arguments: the address of the host, by which this one reaches it."""


@dataclass(frozen=True)
class Members:
    """Hosts of a cluster for the ranks of a plan, in turn. None: this one."""

    home: ClusterHome
    hosts: tuple[Member | None, ...]

    def host(self, rank: int) -> Member | None:
        return self.hosts[rank % len(self.hosts)]


class MemberProcess:
    """Made by `start`. ``address``: of its host, as this one reaches it. ``lost``: done when it has ended, or its host
    is lost: how, in words."""

    def __init__(self, name: str, life: Connection, address: str, said: asyncio.StreamReader) -> None:
        self.name, self.address = name, address
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.words = ""
        self._life, self._said = life, said
        self._watch = asyncio.create_task(self._look(), name=name)

    @classmethod
    async def start(
        cls, members: Members, member: Member, name: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Self:
        """Start Python with ``arguments``, in which `CONTROL` and `ADDRESS` stand for the descriptor of its socket to
        us, and its host's address. Raises `ModelUnavailable` where its host cannot be had now."""
        job = f"guest-{secrets.token_hex(16)}"
        try:
            life = await connect_member(members.home, member, Purpose.ASK)
            try:
                await life.ask(BeginJob(job, grace=END_SECONDS), START_SECONDS)
                line = await connect_member(members.home, member, Purpose.START)
                try:
                    address = line.peer_address
                    told = tuple(each.replace(ADDRESS, address) for each in arguments)
                    await line.ask(StartProcess(job, 0, 1, told, dict(environment)), START_SECONDS)
                    await line.send(Go())
                    said, writer = await asyncio.open_connection(sock=await line.detach())
                except BaseException:
                    line.close()
                    raise
            except BaseException:
                life.close()
                raise
        except (ClusterError, AuthError, OSError, TimeoutError) as error:
            reason = str(error) or "its agent does not answer in time"
            raise ModelUnavailable(f"{member.name} cannot run {name}: {reason}") from None
        made = cls(name, life, address, said)
        made.lost.add_done_callback(lambda _: writer.close())  # which holds it open until then
        return made

    async def ready(self, begin: str, seconds: float) -> str:
        """The rest of the first line that it says to us, which has this ``begin``. Raises `EngineError`."""
        said = asyncio.ensure_future(self._said.readline())
        try:
            both: list[asyncio.Future[Any]] = [said, self.lost]
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            line = said.result().decode(errors="replace").strip() if said.done() else ""
        finally:
            said.cancel()
        if line.startswith(begin):
            return line.removeprefix(begin)
        with suppress(TimeoutError):  # its end is told on another connection
            await asyncio.wait_for(asyncio.shield(self.lost), END_SECONDS)
        how = self.lost.result() if self.lost.done() else f"was not ready within {seconds:g} s"
        raise EngineError(f"{self.name} {how}{self.words}")

    async def stop(self) -> None:
        """End it. Safe to call twice."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        self._life.close()
        if not self.lost.done():
            self.lost.set_result("was stopped")

    async def _look(self) -> None:
        how = "lost its host: the agent ended, or the connection to it is cut"
        try:
            while (message := await self._life.receive()) is not None:
                if isinstance(message, RankExited):
                    how = f"ended with status {message.code}"
                    last = " | ".join(message.tail.splitlines()[-5:])
                    self.words = f"; its last words: {last}" if last else ""
                    break
        except (ClusterError, AuthError) as error:
            how = f"lost its host: {error}"
        if not self.lost.done():
            self.lost.set_result(how)
