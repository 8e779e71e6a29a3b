"""The planner's predictions beside what the built-in engine does on emulated hosts.

One rank alone calibrates the machine (plan/records.py). All splits over cables of any latency and rate are then
predicted, and measured: by the median token of the turn that was disturbed least.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from ferrule.bench.decode import PROMPT, Ferrule
from ferrule.bench.latency import least_disturbed
from ferrule.bench.random_model import RandomModel, save_random_llama
from ferrule.cluster import usable_cores
from ferrule.engine import EngineOptions
from ferrule.lab import Lab, mesh, pair
from ferrule.plan import ClusterSpec, DeviceSpec, LinkSpec, ModelSpec, Plan, RailSpec, Workload, predict, read_model
from ferrule.plan.device_measure import measure_device
from ferrule.plan.local import layout_of_plan
from ferrule.plan.records import calibrate, calibrated, record_of

LAB_SECONDS = 25e-6
"""One way through a lab's cable without any delay, from program to program."""
CONTEXT = 1024
WARM = 128
"""Tokens of cache that an engine holds when its peak is read."""
LAB_RATE = 2e9
"""Bytes per second through a cable without any rate."""


@dataclass(frozen=True)
class Cables:
    """All cables alike: seconds that each adds one way, and bits per second; None: as fast as this machine."""

    delay: float = 0.0
    rate: float | None = None


@dataclass(frozen=True)
class Setting:
    tensor: int
    pipeline: int
    cables: tuple[Cables, ...]

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline


TWO = (Cables(50e-6), Cables(300e-6), Cables(1e-3), Cables(50e-6, 20e6))
FOUR = (Cables(50e-6), Cables(1e-3))
ALONE = Setting(1, 1, (Cables(),))
SETTINGS = (Setting(2, 1, TWO), Setting(1, 2, TWO), Setting(4, 1, FOUR), Setting(1, 4, FOUR), Setting(2, 2, FOUR))


def models(*, quick: bool) -> tuple[RandomModel, ...]:
    small = RandomModel("llama-60m-random", 512, 1536, 12, 8, 4, 16000)
    return (RandomModel.tiny(),) if quick else (small, RandomModel.half_billion())


@dataclass(frozen=True)
class PlannedRow:
    """Milliseconds per token of a single stream. ``tensor`` and ``pipeline`` 1: the rank that calibrated.

    ``weights_mib``: the largest on a rank; ``memory_mib`` and ``predicted_memory_mib``: the peak of private memory."""

    model: str
    tensor: int
    pipeline: int
    cables: Cables
    measured_ms: float
    predicted_ms: float
    memory_mib: float
    predicted_memory_mib: float

    @property
    def hosts(self) -> int:
        return self.tensor * self.pipeline

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1

    @property
    def memory_error_mib(self) -> float:
        return self.predicted_memory_mib - self.memory_mib


def bench_planned(
    *, quick: bool = False, rounds: int = 3, tokens: int = 16, say: Callable[[str], None] = lambda line: None
) -> list[PlannedRow]:
    """Raises `LabError` where there can be no lab."""
    rows: list[PlannedRow] = []
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as scratch:
        specs: dict[Path, ModelSpec] = {}
        for shape in models(quick=quick):
            say(f"making a random {shape.name} model")
            directory = save_random_llama(Path(scratch) / shape.name, shape)
            specs[directory] = read_model(str(directory))

        def run(directory: Path, setting: Setting) -> _Run:
            say(f"{directory.name}: --tp {setting.tensor} --pp {setting.pipeline}")
            return asyncio.run(_run(directory, setting, rounds, tokens))

        alone = {directory: run(directory, ALONE) for directory in specs}
        device = _calibrated(measure_device("host", unit="cpu", threads=1), specs, alone)
        for directory, spec in specs.items():
            rows.append(_row(spec, directory.name, device, ALONE, Cables(), alone[directory]))
            for setting in SETTINGS:
                done = run(directory, setting)
                rows += [_row(spec, directory.name, device, setting, cables, done) for cables in setting.cables]
    return rows


@dataclass(frozen=True)
class _Run:
    plan: Plan
    peak: int
    turns: dict[Cables, list[list[float]]]


async def _run(directory: Path, setting: Setting, rounds: int, tokens: int) -> _Run:
    """One engine after the other: several at once would wait for each other's memory."""
    options = EngineOptions(
        str(directory),
        tensor=setting.tensor,
        pipeline=setting.pipeline,
        threads=1,
        max_context=CONTEXT,
        self_test=False,
    )
    turns: dict[Cables, list[list[float]]] = {}
    async with AsyncExitStack() as stack:
        lab = stack.enter_context(Lab(mesh(setting.ranks) if setting.ranks > 1 else pair()))
        contestant = await stack.enter_async_context(Ferrule(options, lab))
        await contestant.turn(4)
        for _ in range(rounds):
            for cables in setting.cables:
                for cable in lab.cables:
                    cable.shape(delay=cables.delay, rate=cables.rate)
                turns.setdefault(cables, []).append((await contestant.turn(tokens + 1))[1:])
        engine = contestant.engine
        return _Run(engine.plan, max(info.peak_bytes for info in engine.ranks), turns)


def _cluster(device: DeviceSpec, ranks: int, cables: Cables) -> ClusterSpec:
    names = [f"host-{rank}" for rank in range(ranks)]
    bandwidth = LAB_RATE if cables.rate is None else cables.rate / 8
    rail = RailSpec("cable", LAB_SECONDS + cables.delay, bandwidth)
    devices = tuple(replace(device, name=name, kind=device.kind) for name in names)
    links = tuple(LinkSpec(ends, (rail,)) for ends in combinations(names, 2))
    return ClusterSpec(devices, links, cores=usable_cores())


def _work() -> Workload:
    return Workload(context=WARM, prompt=PROMPT)


def _calibrated(device: DeviceSpec, specs: Mapping[Path, ModelSpec], alone: Mapping[Path, _Run]) -> DeviceSpec:
    """By what single ranks of all models did."""
    cluster = _cluster(device, 1, Cables())
    records = [
        record_of(
            specs[directory],
            cluster,
            layout_of_plan(run.plan, ["host-0"]),
            _work(),
            least_disturbed(run.turns[Cables()]) / 1e3,
            at=time.time(),
        )
        for directory, run in alone.items()
    ]
    (found,) = calibrate([record for record in records if record is not None], {device.kind: device})
    return calibrated(device, {found.kind: found})


def _row(spec: ModelSpec, name: str, device: DeviceSpec, setting: Setting, cables: Cables, run: _Run) -> PlannedRow:
    cluster = _cluster(device, setting.ranks, cables)
    layout = layout_of_plan(run.plan, [each.name for each in cluster.devices])
    prediction = predict(spec, cluster, layout, _work())
    return PlannedRow(
        name,
        setting.tensor,
        setting.pipeline,
        cables,
        least_disturbed(run.turns[cables]),
        prediction.token_seconds * 1e3,
        run.peak / (1 << 20),
        max(use.total for use in prediction.memory) / (1 << 20),
    )


@dataclass(frozen=True)
class Choice:
    """Of all that was measured of ``model`` on so many hosts: what the planner would have taken, and the best.

    The single rank is always a choice. ``loss``: how much slower the planner's first choice was."""

    model: str
    hosts: int
    cables: Cables
    chosen: PlannedRow
    best: PlannedRow

    @property
    def loss(self) -> float:
        return self.chosen.measured_ms / self.best.measured_ms - 1


def choices(rows: Sequence[PlannedRow]) -> list[Choice]:
    """For every model, number of hosts, and kind of cables."""
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == model]
        alone = [row for row in mine if row.hosts == 1]
        for hosts, cables in dict.fromkeys((row.hosts, row.cables) for row in mine if row.hosts > 1):
            among = [*alone, *(row for row in mine if (row.hosts, row.cables) == (hosts, cables))]
            chosen = min(among, key=lambda row: row.predicted_ms)
            found.append(Choice(model, hosts, cables, chosen, min(among, key=lambda row: row.measured_ms)))
    return found
