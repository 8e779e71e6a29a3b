"""Clusters from published figures: the machines, cables and labs of `ferrule.hardware`. Pure but for the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from ferrule.errors import PlanError
from ferrule.hardware import CableProfile, Figure, LabProfile, Machine, find_lab
from ferrule.lab import Shaping
from ferrule.plan.cluster.spec import ACHIEVED, ClusterSpec, DeviceSpec, PairSpec, RailSpec
from ferrule.units import format_bytes

LEAST_RESERVE = 1 << 30
RESERVED_PART = 32
"""A system lends a GPU all its memory less so much of it: Linux on Strix Halo 124 of 128 GiB."""
APPLE_PART = 0.75
"""Part of the memory that macOS lends its GPU by itself (`recommendedMaxWorkingSetSize`); ``iogpu.wired_limit_mb``
changes it."""
HOST_SECONDS = {"tcp": 12e-6, "verbs": 1e-6}
"""Seconds that both hosts add to the delay of a cable. TCP: kyuz0 measured 37 us one way over Gigabit Ethernet, of
which the cable's are 25. Verbs: published latencies are from program to program already; the queues must be polled."""
APPLE_TCP_SECONDS = 200e-6
"""TCP on macOS: two thirds of the 300 us that oljasz measured with exo."""
UNSHAPED_RATE = 20e9
"""Bits per second of an emulated cable without a rate, which is as fast as this machine copies: typical."""

EMULATED_SECONDS = 13e-6
"""Seconds that the bridge and the shaper between two emulated hosts add to a message, one way: measured."""
Ends = tuple[Sequence[str], RailSpec]
"""The two devices that a rail joins, and the rail."""
_MTU = 1500
_TCP_HEADERS = 52
"""IP 20, TCP 20 with 12 of time stamps."""
_FRAME_HEADER = 14
_MESSAGE_HEADER = 32
"""Of the fabric's own (native/src/transports/message.h)."""


def cluster_from_profile(profile: str | LabProfile) -> ClusterSpec:
    """The machines and cables of a lab profile (its name, the name of its file, or the profile itself) as if they were
    real: no cores are shared. Raises `ConfigError` where there is no such lab."""
    lab = find_lab(profile) if isinstance(profile, str) else profile
    devices = tuple(device_of(machine, name) for name, machine in zip(lab.hosts, lab.machines, strict=True))
    rails: list[Ends] = []
    notes = [f"{lab.name}: figures that makers and others published, not measured here"]
    for cable, ends in lab.cables:
        if len(ends) > 2:
            notes.append(f"{cable.name}: a switch is taken to carry all its ports at full rate at once")
        for one, other in combinations(ends, 2):
            apple = is_apple(lab.machines[one]) or is_apple(lab.machines[other])
            rails.append(((lab.hosts[one], lab.hosts[other]), rail_of(cable, apple=apple)))
    return ClusterSpec(devices, join_rails(rails), notes=tuple(dict.fromkeys(notes)))


def device_of(machine: Machine, name: str) -> DeviceSpec:
    """A machine by its published figures: of its bandwidth what reading gets, of its memory what a model may fill."""
    return DeviceSpec(
        name,
        usable_memory(machine),
        machine.memory_bandwidth.value * ACHIEVED,
        {dtype: figure.value for dtype, figure in machine.flops.items()},
        kind=machine.name,
        maker=machine.maker,
        disk_read=_value(machine.disk_read),
        watts_idle=_value(machine.watts_idle),
        watts_busy=_value(machine.watts_busy),
        price=_value(machine.price),
    )


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def usable_memory(machine: Machine) -> int:
    """The bytes that a model may fill."""
    memory = int(machine.memory.value)
    return int(memory * APPLE_PART) if is_apple(machine) else lent(memory, machine.name)


def too_full(device: DeviceSpec, machine: Machine) -> str | None:
    """Note where a model may fill more of ``device`` than its system leaves by itself; None: it may not."""
    left = usable_memory(machine)
    if device.memory <= left:
        return None
    cure = "raise iogpu.wired_limit_mb there, and" if is_apple(machine) else "make sure that it is there, and"
    return (
        f"{device.name}: {format_bytes(device.memory)} is more than its system leaves a model by itself, "
        f"{format_bytes(left)} of {format_bytes(int(machine.memory.value))}; {cure} expect a hundredth of the speed "
        "where the system runs short"
    )


def lent(memory: int, name: str) -> int:
    """Bytes that a system, or a card's driver, leaves of ``memory``. ``name``: of the machine, for errors."""
    left = memory - max(LEAST_RESERVE, memory // RESERVED_PART)
    if left <= 0:
        raise PlanError(f"machine {name}: memory of {memory} bytes is less than its system needs")
    return left


def is_apple(machine: Machine) -> bool:
    return machine.title.startswith("Apple")


def rail_of(cable: CableProfile, *, apple: bool = False, transport: str | None = None) -> RailSpec:
    """One cable by ``transport`` (None: what the profile says), between hosts of which one runs macOS or none."""
    by = transport or cable.transport
    return shaped_rail(cable.name, cable.shaping, by, mtu=cable.mtu, apple=apple)


def shaped_rail(
    name: str, shaping: Shaping, transport: str, *, mtu: int | None = None, apple: bool = False
) -> RailSpec:
    """The rail over a cable of this shape. Its bandwidth is that of both ways under load at once, as in a collective,
    where a cable collapses under that; and less headers, which published rates of verbs have taken off already.

    A message of n bytes takes a whole number of frames, so on average half a frame's headers more than its part of full
    frames, and the fabric's header: time before it on a slow cable."""
    if shaping.rate is None:
        raise PlanError(f"cable {name}: its rate is not known; give it one")
    rate = whole = shaping.rate / 8
    alpha = shaping.delay
    if shaping.collapse is not None:
        rate *= min(1.0, shaping.collapse / 2)
    if transport == "tcp":
        frame = mtu or _MTU
        around = _FRAME_HEADER + shaping.overhead
        rate *= (frame - _TCP_HEADERS) / (frame + around)
        alpha += ((_TCP_HEADERS + around) / 2 + _MESSAGE_HEADER) / whole
    host = APPLE_TCP_SECONDS if apple and transport == "tcp" else HOST_SECONDS.get(transport, 0.0)
    return RailSpec(name, alpha + host, rate, transport)


def emulated_rail(name: str, shaping: Shaping) -> RailSpec:
    """A lab's cable of this shape."""
    shaping = shaping if shaping.rate is not None else replace(shaping, rate=UNSHAPED_RATE)
    rail = shaped_rail(name, shaping, "tcp")
    return replace(rail, alpha=rail.alpha + EMULATED_SECONDS)


def join_rails(rails: Iterable[Ends]) -> tuple[PairSpec, ...]:
    """Pairs out of rails between two devices each, whichever of these is named first. Rails of a pair that have the
    same name are numbered."""
    found: dict[frozenset[str], tuple[tuple[str, str], list[RailSpec]]] = {}
    for (one, other), rail in rails:
        found.setdefault(frozenset((one, other)), ((one, other), []))[1].append(rail)
    return tuple(PairSpec(between, _numbered(those)) for between, those in found.values())


def _numbered(rails: Sequence[RailSpec]) -> tuple[RailSpec, ...]:
    if len(rails) == 1:  # as between any two of a thousand
        return (rails[0],)
    names = [rail.name for rail in rails]
    return tuple(
        rail if names.count(rail.name) == 1 else replace(rail, name=f"{rail.name}-{names[:place].count(rail.name) + 1}")
        for place, rail in enumerate(rails)
    )
