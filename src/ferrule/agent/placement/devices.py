"""Devices of a cluster's hosts that ``--device`` allows, as the agents describe them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from ferrule.agent.placement.cores import reports_by_share
from ferrule.agent.placement.shared import SharedMemory
from ferrule.cluster.client import ask_member
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import DescribeDevices, ProbeDevice
from ferrule.cluster.records import Member
from ferrule.engine.device_names import CPU, parse_device
from ferrule.engine.device_probe import PROBE_SECONDS
from ferrule.engine.host.device_choice import apart
from ferrule.engine.host.lost_devices import LostDevices
from ferrule.errors import ClusterError, LinkError
from ferrule.plan import ClusterSpec, DeviceSpec
from ferrule.plan.cluster import HostReport, Sources, cluster_of_reports, parse_report
from ferrule.plan.cost import calibrated, read_calibrations

_log = logging.getLogger(__name__)

DEVICE_SECONDS = 180.0
"""For a host to describe itself: the first time it measures."""
ASK_SECONDS = 2 * PROBE_SECONDS + 5.0
"""For a probe: another model may ask for one at that moment."""


class HostDevices:
    """``allowed``: as ``--device`` names them, on every host. Hosts are called as the cluster calls them. ``memory``:
    other models that hold some; it is as if they were not there."""

    def __init__(self, home: ClusterHome, allowed: str, memory: SharedMemory | None = None) -> None:
        self._home, self._allowed, self._memory = home, allowed, memory
        self._reports: dict[tuple[str, str], HostReport] = {}
        self.notes: tuple[str, ...] = ()
        """Why devices of the hosts that were described last are left out, for people."""

    async def described(
        self,
        members: Sequence[Member],
        lost: LostDevices,
        *,
        fresh: bool,
        now: bool = False,
        beside: Sequence[Member] = (),
    ) -> dict[str, HostReport]:
        """Reports of those that answer, by host id: without what is ``lost``, and then with the processor. Unless
        ``fresh`` what is known will do: after a loss time counts. ``now``: as in `DescribeDevices`. ``beside``: others
        that are described, too, whose notes are not told."""
        if fresh:
            self._reports.clear()
        every = list({member.host: member for member in (*members, *beside)}.values())
        found = await asyncio.gather(*(self._left(member, lost.of(member.name), now) for member in every))
        reports = {member.host: report for member, report in zip(every, found, strict=True) if report is not None}
        notes = tuple(note for each in members if each.host in reports for note in reports[each.host].notes)
        for note in notes:
            if note not in self.notes:
                _log.warning("%s", note)
        self.notes = notes
        return reports

    async def _left(self, member: Member, lost: Collection[str], now: bool) -> HostReport | None:
        report = await self._report(member, self._allowed, now)
        if report is None or not lost:
            return report
        devices = without(report.devices, lost)
        if not any((device.device or CPU) == CPU for device in devices):
            processor = await self._report(member, CPU, now)
            devices = apart((*devices, *(processor.devices if processor is not None else ())))
        return _with(report, devices, member.name) if devices else None

    async def _report(self, member: Member, names: str, now: bool) -> HostReport | None:
        known = self._reports.get((member.host, names))
        if known is not None:
            return known
        try:
            asked = DescribeDevices(names, now)
            told = await ask_member(self._home, member, asked, timeout=DEVICE_SECONDS)
            report = parse_report(told, member.name)
        except (ClusterError, LinkError) as error:
            _log.warning("%s is left out: %s", member.name, error)
            return None
        notes = tuple(f"{member.name}: {note}" for note in report.notes)
        report = msgspec.structs.replace(report, host=replace(report.host, host=member.name), notes=notes)
        report = _with(report, report.devices, member.name)
        if self._memory is not None:
            report = _each(report, self._memory.emptied)
        self._reports[member.host, names] = report
        return report


def cluster_of(members: Sequence[Member], reports: Mapping[str, HostReport]) -> ClusterSpec:
    """Of these ``members``, each with its own part of a machine that it shares with others of the ``reports``, and with
    devices as calibrated."""
    own = reports_by_share(reports)
    cluster = cluster_of_reports([own[member.host] for member in members], Sources.of_this_machine())
    known = read_calibrations()
    return replace(cluster, devices=tuple(calibrated(device, known) for device in cluster.devices))


async def probe_of(home: ClusterHome, members: Sequence[Member], host: str, device: str) -> str:
    """Why that device of the member that is called ``host`` cannot be used now; empty where it can."""
    member = next((each for each in members if each.name == host), None)
    if member is None:
        return f"{host} is not there"
    try:
        return await ask_member(home, member, ProbeDevice(device), timeout=ASK_SECONDS)
    except ClusterError as error:
        return str(error)


def without(devices: Sequence[DeviceSpec], lost: Collection[str]) -> tuple[DeviceSpec, ...]:
    """Those of ``devices`` that are not ``lost``, which may name a whole kind."""
    return tuple(
        each for each in devices if each.device not in lost and parse_device(each.device or CPU)[0] not in lost
    )


def _with(report: HostReport, devices: Sequence[DeviceSpec], host: str) -> HostReport:
    """Called as ``host`` if there is one, else each by its own name and the host's."""
    names = [host] if len(devices) == 1 else [f"{each.device or CPU} of {host}" for each in devices]
    first, *others = (replace(each, name=name, host=host) for each, name in zip(devices, names, strict=True))
    return msgspec.structs.replace(report, device=first, others=tuple(others))


def _each(report: HostReport, change: Callable[[DeviceSpec], DeviceSpec]) -> HostReport:
    others = tuple(map(change, report.others))
    return msgspec.structs.replace(report, device=change(report.device), others=others)
