"""Devices that stay lost, by host, and those that ranks take instead. Pure: the caller passes the time in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ferrule.engine.device_names import AUTO, CPU, device_of, parse_device
from ferrule.engine.host.placement import Loss
from ferrule.engine.host.restart_policy import CRASH_SECONDS
from ferrule.engine.options import RankOptions
from ferrule.errors import PlanError
from ferrule.model import ModelSpec
from ferrule.plan import require_room

MOST_LOSSES = 4
"""A device is not used again that was lost so often within `CRASH_SECONDS`, or once while a model was loaded: a restart
of the ranks did not cure it. Less than `restart_policy.MOST_CRASHES`, more than a request may crash."""


class Deviation(NamedTuple):
    """``devices``: of the ranks, those of ``options`` one by one. ``note``: why, for people."""

    options: RankOptions
    devices: tuple[str, ...]
    note: str


class LostDevices:
    """Remembers what ranks say of their hosts' devices when one fails. Hosts are called as in `StartedRanks.hosts`."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], list[float]] = {}
        self._lost: dict[str, list[str]] = {}
        self._known: dict[str, tuple[str, ...]] = {}

    def note(self, loss: Loss, now: float) -> None:
        """At ``now``, in seconds of a clock that only runs forward."""
        for host, device in loss.devices:
            self._known[host] = (device.name, *device.others)
            times = [at for at in self._times.get((host, device.name), []) if now - at < CRASH_SECONDS]
            self._times[host, device.name] = times = [*times, now]
            lost = self._lost.setdefault(host, [])
            if device.name not in lost and (device.starting or len(times) >= MOST_LOSSES):
                lost.append(device.name)

    def of(self, host: str) -> tuple[str, ...]:
        """Those of ``host`` that stay lost."""
        return tuple(self._lost.get(host, ()))

    def instead(self, names: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
        """For each rank the device that it takes, of what was wanted (``names``) on its host: the same, or where that
        is lost one of the same kind, else another accelerator, else the processor; the one that fewest have."""
        wanted = list(zip(hosts, names, strict=True))
        taken = Counter(each for each in wanted if self._stays(*each))
        chosen = []
        for host, name in wanted:
            device = name if self._stays(host, name) else self._instead(host, name, taken)
            taken[host, device] += device != name
            chosen.append(device)
        return tuple(chosen)

    def _stays(self, host: str, name: str) -> bool:
        """Whether ``name`` means one device that is not lost, or nothing is lost there."""
        lost = self.of(host)
        if not lost or name == CPU:
            return True
        kind, number = (AUTO, None) if name == AUTO else parse_device(name)
        return number is not None and name not in lost and kind not in lost

    def _instead(self, host: str, name: str, taken: Counter[tuple[str, str]]) -> str:
        lost = self.of(host)
        kind, _ = parse_device(lost[0] if name == AUTO else name)
        left = [each for each in self._known[host] if each not in lost and parse_device(each)[0] not in lost]
        left.sort(key=lambda each: (parse_device(each)[0] != kind, each == CPU))
        near = [each for each in left if parse_device(each)[0] == parse_device(left[0])[0]]
        return min(near, key=lambda each: taken[host, each])

    def around(self, options: RankOptions, hosts: Sequence[str]) -> Deviation | None:
        """``options`` for ranks on ``hosts``, around what stays lost; None where they are as they were."""
        if not any(self._lost.values()):
            return None
        wanted = tuple(device_of(options.device, rank, len(hosts)) for rank in range(len(hosts)))
        names = self.instead(wanted, hosts)
        if names == wanted:
            return None
        return Deviation(replace(options, device=",".join(names)), names, self.told_with(names))

    def told(self) -> str:
        """All that stay lost, for people; empty where there are none."""
        parts = (" and ".join(lost) + (f" of {host}" if host else "") for host, lost in self._lost.items() if lost)
        found = ", ".join(parts)
        return f"{found} stays lost" if found else ""

    def told_with(self, devices: Sequence[str]) -> str:
        """The same, and the ``devices`` that ranks have instead."""
        places = ", ".join(f"rank {rank} on {device}" for rank, device in enumerate(devices))
        return f"{self.told()}, so the model runs with {places}"

    def refusal(self, error: PlanError) -> PlanError:
        """``error`` about the devices that are left, with what is lost."""
        return PlanError(f"{self.told()}, and {error}", needed=error.needed, available=error.available)

    def check_room(self, model: ModelSpec, found: Deviation, hosts: Sequence[str], free: Mapping[str, int]) -> None:
        """``free``: bytes for processors, by host, as far as they are known. Raises `PlanError` (with ``needed`` and
        ``available``) where they are too few for what was on lost devices."""
        names = [f"{device} of {host}" if host else device for device, host in zip(found.devices, hosts, strict=True)]
        room = {f"{CPU} of {host}" if host else CPU: size for host, size in free.items()}
        try:
            require_room(model, found.options.plan, names, room)
        except PlanError as error:
            raise self.refusal(error) from None
