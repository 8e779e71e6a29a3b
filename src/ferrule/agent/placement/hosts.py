"""Hosts of a cluster on which a model's ranks can run: which of them answer, and what their processors have free."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from ferrule.agent.placement.cores import HostCores
from ferrule.agent.placement.ranks import FileSource
from ferrule.cluster.client import ask_all, ask_here
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetReachable, GetReport, GetStatus
from ferrule.cluster.records import Member
from ferrule.engine.device_names import CPU
from ferrule.errors import ConfigError, ModelUnavailable

_log = logging.getLogger(__name__)

REACH_SECONDS = 1.0
REPORT_SECONDS = 3.0


class RankHosts:
    """``wanted``: names of hosts, all if empty. ``beside``: names of hosts of other replicas."""

    def __init__(self, home: ClusterHome, wanted: Sequence[str], beside: Sequence[str]) -> None:
        self._home, self._wanted, self._names_beside = home, tuple(wanted), frozenset(beside)
        self.beside: Sequence[Member] = ()
        """Those of other replicas that have answered."""
        self.source: FileSource | None = None
        """This host, once it is known, if it has the engine."""

    async def answering(self) -> list[Member]:
        """Those that answer now and can run ranks, this host first, then by name. Raises `ModelUnavailable` where none
        does, or one that was named has no engine."""
        status = await ask_here(self._home, GetStatus())
        known = {member.host: member for member in status.hosts}
        require_known(self._wanted, status.hosts)
        if self.source is None and not known[status.host].install_engine:
            self.source = FileSource(self._home, known[status.host])
        reached = await ask_here(self._home, GetReachable(REACH_SECONDS))
        up = [known[host] for host in reached if host in known]
        self.beside = [member for member in up if member.name in self._names_beside]
        there = self._of_wanted(up)
        if not there:
            raise ModelUnavailable(f"none of the hosts {', '.join(self._wanted)} answers")
        lacking = [member for member in there if member.install_engine]
        if lacking and (self._wanted or len(lacking) == len(there)):
            raise ModelUnavailable(f"no rank can run on {'; nor on '.join(map(_install, lacking))}")
        for member in lacking:
            _log.warning("no rank is put on %s", _install(member))
        return _able(there, status.host)

    async def steady(self, seconds: float) -> list[Member]:
        """Those that have been up for so long, in the order of `answering`."""
        status = await ask_here(self._home, GetStatus())
        up = [each for each in status.hosts if each.state == "here" or (each.up_seconds or 0.0) >= seconds]
        return _able(self._of_wanted(up), status.host)

    async def cores(self, members: Sequence[Member]) -> dict[str, HostCores]:
        """The processors of each host that answers in time."""
        reports = await ask_all(self._home, members, GetReport(), REPORT_SECONDS)
        return {host: HostCores(report.kernel, report.cpus) for host, report in reports.items()}

    async def free(self, members: Sequence[Member]) -> dict[str, int]:
        """Bytes free for processors, by the names of those hosts that answer in time."""
        by_host = {member.host: member for member in members}
        reports = await ask_all(self._home, list(by_host.values()), GetReport(), REPORT_SECONDS)
        return {
            by_host[host].name: device.free
            for host, report in reports.items()
            for device in report.devices
            if device.kind == CPU
        }

    def _of_wanted(self, members: Iterable[Member]) -> list[Member]:
        return [member for member in members if not self._wanted or member.name in self._wanted]


def require_known(wanted: Collection[str], members: Collection[Member]) -> None:
    """Raises `ConfigError` for names of hosts that the cluster does not have."""
    names = {member.name for member in members}
    if strange := set(wanted) - names:
        raise ConfigError(f"--hosts: the cluster has no {', '.join(sorted(strange))}, only {', '.join(sorted(names))}")


def _able(members: Iterable[Member], here: str) -> list[Member]:
    """Those that have the engine, the one with the id ``here`` first, then by name."""
    able = [member for member in members if not member.install_engine]
    return sorted(able, key=lambda member: (member.host != here, member.name))


def _install(member: Member) -> str:
    return f"{member.name}, where the engine is not installed; run there: {member.install_engine}"
