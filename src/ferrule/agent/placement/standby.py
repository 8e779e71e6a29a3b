"""Standby processes on the hosts of a cluster, kept by their agents: they make the next start of a model quick."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Mapping

from ferrule.agent.placement.ranks import START_SECONDS, ClusterStarter
from ferrule.agent.standby import MOST
from ferrule.cluster.client import connect_member
from ferrule.cluster.connection import Connection
from ferrule.cluster.handshake import Purpose
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import KeepStandby, StandbyKept
from ferrule.cluster.records import Member
from ferrule.engine.host.placement import Deployment
from ferrule.engine.host.processes import RANK_MODULE, rank_environment
from ferrule.errors import AuthError, ClusterError

_log = logging.getLogger(__name__)


class ClusterStandby:
    """`StandbyPool`: as many on each host as it has ranks. They end with this program's connection to the agent.

    ``spread``: the number of ranks stays the same when a host is lost, so each host has as many as its share then.
    """

    def __init__(self, home: ClusterHome, *, spread: bool = False) -> None:
        self._home, self._spread = home, spread
        self._holding: dict[str, Connection] = {}
        self._kept: dict[str, StandbyKept] = {}
        self._working: asyncio.Task[bool] | None = None

    @property
    def kept(self) -> int:
        """Number of standby processes on all hosts when they were last looked at."""
        return sum(each.kept for each in self._kept.values())

    async def prepare(self, deployment: Deployment) -> bool:
        starter = deployment.starter
        assert isinstance(starter, ClusterStarter)
        if self._working is not None:  # of a caller that could not wait
            await asyncio.wait([self._working])
        self._working = asyncio.create_task(
            self._prepare(starter, deployment.options.encrypt), name="standby processes"
        )
        return await asyncio.shield(self._working)  # half a question would spoil the connection

    async def _prepare(self, starter: ClusterStarter, encrypt: bool | None) -> bool:
        members = {member.host: member for member in starter.members}
        threads = dict(zip((member.host for member in starter.members), starter.threads, strict=True))
        counts = Counter(member.host for member in starter.members)
        if self._spread and len(counts) > 1:
            share = min(MOST, math.ceil(len(starter.members) / (len(counts) - 1)))
            counts = Counter({host: max(count, share) for host, count in counts.items()})
        for host in self._holding.keys() - members.keys():
            self._let_go(host)
        await asyncio.gather(
            *(
                self._keep(member, counts[host], rank_environment(threads[host], encrypt))
                for host, member in members.items()
            )
        )
        return sum(each.ready for each in self._kept.values()) == counts.total()

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        for host in list(self._holding):
            self._let_go(host)

    async def _keep(self, member: Member, count: int, env: Mapping[str, str]) -> None:
        wanted = KeepStandby(RANK_MODULE, dict(env), count)
        known = member.host in self._holding
        try:
            if not known:
                self._holding[member.host] = await connect_member(self._home, member, Purpose.ASK)
            self._kept[member.host] = await self._holding[member.host].ask(wanted, START_SECONDS)
        except (ClusterError, AuthError, OSError, TimeoutError) as error:
            self._let_go(member.host)
            if known:  # its agent may have started again
                await self._keep(member, count, env)
            else:  # a start without them is slower, and no worse
                _log.info("no standby processes on %s: %s", member.name, error or "it does not answer in time")

    def _let_go(self, host: str) -> None:
        self._kept.pop(host, None)
        connection = self._holding.pop(host, None)
        if connection is not None:
            connection.close()
