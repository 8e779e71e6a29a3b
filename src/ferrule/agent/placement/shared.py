"""Memory of a cluster's devices that several models share: what each of them holds, and what is left. Pure.

A host tells what is free on it now. To that is added what the other models hold, so that a report stays of use when
some of them are unloaded or more are loaded; from it is taken what they may need with their caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ferrule.engine.device_names import CPU
from ferrule.model import ModelSpec
from ferrule.plan import DeviceSpec, Plan, rank_memory
from ferrule.units import format_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Memory of one rank: ``total`` bytes on that ``device`` of that ``host``, and those of them (``cache``) that it
    does not take before requests come."""

    host: str
    device: str
    total: int
    cache: int


def parts_of(
    model: ModelSpec,
    plan: Plan,
    hosts: Sequence[str],
    devices: Sequence[str],
    *,
    context: int,
    standby: bool,
    weights: int | None = None,
) -> tuple[Part, ...]:
    """Of each rank, with one sequence of ``context`` tokens, and a standby process if there is to be one. ``weights``:
    as in `rank_memory`."""
    uses = rank_memory(model, plan, context=context, weights=weights)
    return tuple(
        Part(host, device, use.total + (use.runtime if standby else 0), use.cache)
        for host, device, use in zip(hosts, devices, uses, strict=True)
    )


class SharedMemory:
    """Memory as the model ``name`` finds it. ``loaded``: parts of each model that is in memory now, by name. ``limit``:
    bytes that all of them together may take on each device. ``standby``: its ranks have standby processes, too."""

    def __init__(
        self,
        name: str,
        loaded: Callable[[], Mapping[str, Sequence[Part]]],
        limit: int | None = None,
        *,
        standby: bool = False,
    ) -> None:
        self._name, self._loaded, self._limit, self._standby = name, loaded, limit, standby

    def emptied(self, device: DeviceSpec) -> DeviceSpec:
        """A device that was described just now, as if the others were not there."""
        held = sum(part.total - part.cache for part in self._on(device, ()))
        return replace(device, memory=device.memory + held)

    def left(self, device: DeviceSpec, without: Collection[str] = ()) -> DeviceSpec:
        """An `emptied` device with what the others leave of it. ``without``: names of those that are to be unloaded."""
        held = sum(part.total for part in self._on(device, without))
        room = device.memory if self._limit is None else min(device.memory, self._limit)
        runtime = device.runtime_bytes * (2 if self._standby else 1)
        return replace(device, memory=max(1, room - held), runtime_bytes=runtime)

    def _on(self, device: DeviceSpec, without: Collection[str]) -> Iterable[Part]:
        place = (device.host_name, device.device or CPU)
        for name, parts in self._loaded().items():
            if name != self._name and name not in without:
                yield from (part for part in parts if (part.host, part.device) == place)


def lacking(parts: Iterable[Part], devices: Iterable[DeviceSpec]) -> str:
    """Where ``parts`` are more than what is left on ``devices``; empty where they are not."""
    needs: Counter[tuple[str, str]] = Counter()
    for part in parts:
        needs[part.host, part.device] += part.total
    rooms = {(device.host_name, device.device or CPU): device.memory for device in devices}
    return " and ".join(
        f"{device} of {host} needs {format_bytes(need)} and has {format_bytes(rooms[host, device])}"
        for (host, device), need in needs.items()
        if (host, device) in rooms and need > rooms[host, device]
    )


async def first_to_go(out: Sequence[T], fits: Callable[[Sequence[T]], Awaitable[bool]]) -> T | None:
    """Of what can be unloaded (``out``, the least recently used first) that with which to begin; None where all of it
    is not enough. ``fits``: whether there is room without these. What was used later stays if it need not go."""
    if not out or not await fits(out):
        return None
    going = list(out)
    for each in reversed(out):
        rest = [other for other in going if other is not each]
        if rest and await fits(rest):
            going = rest
    return going[0]
