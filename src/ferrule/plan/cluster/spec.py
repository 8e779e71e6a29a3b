"""Cluster spec: the planner's description of machines and the cables between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ferrule.errors import PlanError
from ferrule.fabric.routing.costs import PairCosts

ACHIEVED = 0.85
"""Part of a maker's memory bandwidth that reading a large array gets: McCalpin's STREAM and its kin see 80 to 90 % on
most machines. A measured bandwidth is taken as it is."""
LAUNCH_SECONDS = 5e-6
"""Seconds of starting one operation where it was not measured: a kernel launch takes 3 to 10 us on most GPUs."""
CORES_KEEP = ("cores_together", "cores_in_turns", "cores_awake")
"""Fields of `ClusterSpec`: parts of its speed that a core keeps."""
HALF = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class DeviceSpec:
    """One machine, or one GPU of it, as far as a model on it is concerned.

    ``host``: the machine, where that has another name; ``device``: what ``--device`` is to name there, such as
    ``cuda:1``, empty where that is not known. ``kind``: devices of one kind share a calibration. ``memory``: the
    bytes that a model may fill. ``memory_bandwidth``: bytes per second that reading weights gets. ``flops``:
    operations per second by type. ``launch_seconds``: what each operation (kernel) of a layer costs beside its
    bytes and arithmetic, the one number of a device that is fitted to measurements; ``eager_seconds``: the same of
    the built-in engine, None where that is not known apart. ``resume_seconds``: what a stage of that engine takes
    longer after it has waited for others, as caches have cooled. ``disk_read``: bytes per second.
    ``runtime_bytes``: what the serving process holds before any weight. ``watts_idle``, ``watts_busy``: of the
    whole machine; ``price`` in US dollars. ``copy_rate``, ``copy_seconds``: bytes per second between its memory and
    the host's, and seconds of a small copy with the wait for it; None where it is the host's memory. ``unified``: an
    accelerator whose memory is the host's. ``measured``: by the built-in benchmark, not from what a maker states.
    ``maker``: of its GPU, by which engines' kernels are told apart (`Machine.maker`), empty where that is not known.
    """

    name: str
    memory: int
    memory_bandwidth: float
    flops: Mapping[str, float]
    kind: str = ""
    launch_seconds: float = LAUNCH_SECONDS
    eager_seconds: float | None = None
    resume_seconds: float = 0.0
    disk_read: float | None = None
    runtime_bytes: int = 0
    watts_idle: float | None = None
    watts_busy: float | None = None
    price: float | None = None
    measured: bool = False
    maker: str = ""
    host: str = ""
    device: str = ""
    copy_rate: float | None = None
    copy_seconds: float | None = None
    unified: bool = False

    def __post_init__(self) -> None:
        where = f"device {self.name or '?'}"
        if not self.name:
            raise PlanError("a device needs a name")
        _positive(where, memory=self.memory, memory_bandwidth=self.memory_bandwidth)
        if not self.flops:
            raise PlanError(f"{where}: flops must hold at least one of bf16, fp16, fp32")
        _positive(f"{where}, flops", **self.flops)
        if self.copy_rate is not None:
            _positive(where, copy_rate=self.copy_rate)
        _at_least_0(
            where,
            launch_seconds=self.launch_seconds,
            resume_seconds=self.resume_seconds,
            runtime_bytes=self.runtime_bytes,
        )
        for name in ("eager_seconds", "disk_read", "watts_idle", "watts_busy", "price", "copy_seconds"):
            if (value := getattr(self, name)) is not None:
                _at_least_0(where, **{name: value})

    @property
    def host_name(self) -> str:
        """Name of the host."""
        return self.host or self.name

    @property
    def accelerated(self) -> bool:
        """Whether ranks compute on a GPU, by transformers' modules."""
        return self.device not in ("", "cpu")

    def staged(self, rail: RailSpec) -> RailSpec:
        """``rail`` as it is for this device, where what it exchanges is first copied to the host, or from there, one
        after the other."""
        bandwidth = rail.bandwidth if self.copy_rate is None else 1 / (1 / rail.bandwidth + 1 / self.copy_rate)
        return replace(rail, alpha=rail.alpha + (self.copy_seconds or 0.0), bandwidth=bandwidth)

    @property
    def half_flops(self) -> float:
        """Operations per second in 16 bits; in 32 where that is all that is known."""
        return next((self.flops[dtype] for dtype in HALF if dtype in self.flops), next(iter(self.flops.values())))

    def flops_of(self, dtype: str) -> float:
        """Operations per second in ``dtype``; of the nearest type that is known."""
        rate = self.flops.get(dtype)
        return self.half_flops if rate is None else rate


@dataclass(frozen=True)
class RailSpec:
    """One cable, by one transport. ``alpha``: seconds that a small message takes from one program to another, one way;
    ``bandwidth``: bytes per second, each way."""

    name: str
    alpha: float
    bandwidth: float
    transport: str = "tcp"

    def __post_init__(self) -> None:
        _at_least_0(f"rail {self.name}", alpha=self.alpha)
        _positive(f"rail {self.name}", bandwidth=self.bandwidth)


@dataclass(frozen=True)
class PairSpec:
    """All rails between two devices. Small messages take the quickest, large ones are striped over all."""

    between: tuple[str, str]
    rails: tuple[RailSpec, ...]

    def __post_init__(self) -> None:
        if len(self.between) != 2 or self.between[0] == self.between[1]:
            raise PlanError(f"pair {self.name}: between must name two different devices")
        if not self.rails:
            raise PlanError(f"pair {self.name} has no rails")

    @property
    def name(self) -> str:
        return "-".join(self.between)

    @property
    def alpha(self) -> float:
        return min(rail.alpha for rail in self.rails)

    @property
    def bandwidth(self) -> float:
        return sum(rail.bandwidth for rail in self.rails)

    @property
    def best_rail(self) -> RailSpec:
        """That for small messages."""
        return min(self.rails, key=lambda rail: (rail.alpha, -rail.bandwidth, rail.name))


@dataclass(frozen=True)
class ClusterSpec:
    """Machines and cables. ``pairs``: any two devices that share some, once. ``cores``: where all devices are emulated
    on one machine, how many cores that has: more ranks than those take turns; None: each device has processors of its
    own. ``cores_together``: the part of its speed that each of these cores keeps while all compute and wait for the
    slowest; ``cores_in_turns``: that while ranks take turns on each, who find its caches cold, None: the same;
    ``cores_awake``: that while ranks on the others stay awake to wait, as those of other stages do."""

    devices: tuple[DeviceSpec, ...]
    pairs: tuple[PairSpec, ...] = ()
    cores: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    cores_together: float = 1.0
    cores_in_turns: float | None = None
    cores_awake: float = 1.0

    def __post_init__(self) -> None:
        if not self.devices:
            raise PlanError("the cluster has no devices")
        names = [device.name for device in self.devices]
        known = set(names)
        if len(known) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise PlanError(f"two devices are called {twice!r}; every name must be its own")
        seen: set[frozenset[str]] = set()
        for pair in self.pairs:
            for end in pair.between:
                if end not in known:
                    raise PlanError(f"pair {pair.name}: between names {end!r}, and there is no such device")
            if frozenset(pair.between) in seen:
                raise PlanError(f"pair {pair.name} is there twice; give it several rails instead")
            seen.add(frozenset(pair.between))
        if self.cores is not None:
            _positive("cluster", cores=self.cores)
        for name in CORES_KEEP:
            if (value := getattr(self, name)) is not None and not 0 < value <= 1:
                raise PlanError(f"cluster: {name} must be more than 0 and at most 1, not {value}")

    @cached_property
    def by_name(self) -> dict[str, DeviceSpec]:
        return {device.name: device for device in self.devices}

    @cached_property
    def _by_ends(self) -> dict[frozenset[str], PairSpec]:
        return {frozenset(pair.between): pair for pair in self.pairs}

    def pair(self, a: str, b: str) -> PairSpec | None:
        return self._by_ends.get(frozenset((a, b)))

    def turns(self, ranks: int, *, others: bool = False) -> float:
        """By how much longer each of so many ranks needs that compute at the same time, while ``others`` wait."""
        if self.cores is None:
            return 1.0
        if ranks > self.cores:
            return ranks / self.cores / min(self.cores_together, self.cores_in_turns or self.cores_together)
        slower = 1 + (1 / self.cores_together - 1) * (ranks - 1) / max(1, self.cores - 1)
        return max(slower, 1 / self.cores_awake) if others and self.cores > 1 else slower

    def costs(self, names: Sequence[str]) -> PairCosts:
        """Costs of the pairs as the fabric takes them, for one rank on each of the named devices, in that order."""
        pairs = [[self.pair(a, b) if a != b else None for b in names] for a in names]
        return PairCosts(
            tuple(tuple(None if pair is None else pair.alpha for pair in row) for row in pairs),
            tuple(tuple(None if pair is None else 1 / pair.bandwidth for pair in row) for row in pairs),
            max(1.0, len(names) / self.cores) if self.cores else 1.0,
        )

    def among(self, names: Sequence[str]) -> ClusterSpec:
        """Only the named devices, in that order, and the cables between any two of them."""
        devices = tuple(self.by_name[name] for name in names)
        chosen = set(names)
        pairs = tuple(pair for pair in self.pairs if chosen.issuperset(pair.between))
        return replace(self, devices=devices, pairs=pairs)


def _positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise PlanError(f"{where}: {name} must be more than 0, not {value}")


def _at_least_0(where: str, **values: float) -> None:
    for name, value in values.items():
        if not (value >= 0 and math.isfinite(value)):
            raise PlanError(f"{where}: {name} must be at least 0, not {value}")
