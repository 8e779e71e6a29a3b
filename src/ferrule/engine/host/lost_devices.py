"""Devices that stay lost, by host, and those that ranks take instead. Pure: the caller passes the time in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ferrule.engine.device_names import AUTO, CPU, device_of, parse_device
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.host.restart_policy import CRASH_SECONDS
from ferrule.engine.options import RankOptions
from ferrule.errors import PlanError
from ferrule.model import ModelSpec
from ferrule.plan import require_room

MOST_LOSSES = 4
"""A device is not used again that was lost so often within `CRASH_SECONDS`, or once while a model was loaded: a restart
of the ranks did not cure it. Less than `restart_policy.MOST_CRASHES`, more than a request may crash."""
MOST_RETURNS = 3
RETURN_SECONDS = 86400.0
"""A device that was used again so often within so many seconds, and then lost, is not tried any more meanwhile: each
time the model moves twice."""
DeviceOfHost = tuple[str, str]
"""A host and the name of its device."""


def used_of(back: Collection[DeviceOfHost], hosts: Sequence[str], devices: Sequence[str]) -> frozenset[DeviceOfHost]:
    """Those of ``back``, which may be whole kinds, that ranks on ``devices`` of ``hosts`` use."""
    used = set(zip(hosts, devices, strict=True))
    used |= {(host, parse_device(device)[0]) for host, device in used}
    return frozenset(used.intersection(back))


class Deviation(NamedTuple):
    """``devices``: of the ranks, those of ``options`` one by one. ``note``: why, for people."""

    options: RankOptions
    devices: tuple[str, ...]
    note: str


class LostDevices:
    """Remembers what ranks say of their hosts' devices when one fails. Hosts are called as in `StartedRanks.hosts`."""

    def __init__(self) -> None:
        self._noted: Loss | None = None
        self._times: dict[tuple[str, str], list[float]] = {}
        self._lost: dict[str, list[str]] = {}
        self._known: dict[str, tuple[str, ...]] = {}
        self._returned: dict[DeviceOfHost, list[float]] = {}

    def note(self, loss: Loss, now: float) -> None:
        """At ``now``, in seconds of a clock that only runs forward. The same loss counts once."""
        if loss is self._noted:
            return
        self._noted = loss
        for host, device in loss.devices:
            self._known[host] = (device.name, *device.others)
            times = [at for at in self._times.get((host, device.name), []) if now - at < CRASH_SECONDS]
            self._times[host, device.name] = times = [*times, now]
            lost = self._lost.setdefault(host, [])
            if device.name not in lost and (device.starting or len(times) >= MOST_LOSSES):
                lost.append(device.name)

    def lasting(self, loss: Loss, now: float) -> bool:
        """`note` it, and tell whether something stays lost by it."""
        before = self.all
        self.note(loss, now)
        return self.all != before

    def of(self, host: str) -> tuple[str, ...]:
        """Those of ``host`` that stay lost."""
        return tuple(self._lost.get(host, ()))

    @property
    def all(self) -> frozenset[DeviceOfHost]:
        """Those that stay lost."""
        return frozenset((host, name) for host, names in self._lost.items() for name in names)

    def without(self, back: Collection[DeviceOfHost]) -> LostDevices:
        """As if those that are ``back`` were not lost."""
        found = LostDevices()
        found._known, found._returned = self._known, self._returned
        found._lost = {host: [name for name in lost if (host, name) not in back] for host, lost in self._lost.items()}
        return found

    def use_again(self, back: Collection[DeviceOfHost], now: float) -> None:
        """They are back, and used from ``now`` on."""
        self._lost = self.without(back)._lost
        for device in back:
            self._times.pop(device, None)
            self._returned[device] = [at for at in self._returned.get(device, []) if now - at < RETURN_SECONDS]
            self._returned[device].append(now)

    def withdraw(self, back: Collection[DeviceOfHost]) -> None:
        """They were not, after all."""
        for host, name in sorted(back):
            if name not in self._lost[host]:
                self._lost[host].append(name)

    def returns(self, device: DeviceOfHost, now: float) -> int:
        """How often it was used again of late."""
        return sum(now - at < RETURN_SECONDS for at in self._returned.get(device, []))

    def given_up(self, device: DeviceOfHost, now: float) -> bool:
        """Whether that was so often that it is not tried any more."""
        return self.returns(device, now) >= MOST_RETURNS

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
        flapping = [
            f"{name} of {host}" if host else name
            for host, name in sorted(self.all)
            if len(self._returned.get((host, name), [])) >= MOST_RETURNS
        ]
        gone = f" ({' and '.join(flapping)} came back {MOST_RETURNS} times only to be lost again)" if flapping else ""
        return f"{found} stays lost{gone}" if found else ""

    def told_with(self, devices: Sequence[str]) -> str:
        """The same, and the ``devices`` that ranks have instead."""
        places = ", ".join(f"rank {rank} on {device}" for rank, device in enumerate(devices))
        return f"{self.told()}, so the model runs with {places}"

    @staticmethod
    def returning(deployment: Deployment, back: Collection[DeviceOfHost]) -> Deployment:
        """A ``deployment`` whose note tells that those which are ``back`` are used again."""
        told = f"{' and '.join(f'{name} of {host}' if host else name for host, name in sorted(back))} is back in use"
        return replace(deployment, note="; ".join(filter(None, (deployment.note, told))))

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
