"""The planner's predictions beside what the built-in engine does on emulated hosts.

Single ranks calibrate the machine (plan/cost/calibration.py); all splits over cables of any latency and rate are then
predicted, and measured. All take turns, so that what drifts on this machine hits them alike, and a turn in which other
programs needed the processors is tried again.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from ferrule.agent.device import RANK
from ferrule.bench.bystanders import Bystanders
from ferrule.bench.engine.contestants import PROMPT, Ferrule, seconds_per_token
from ferrule.bench.splits import ALONE, Cables, Setting, Subject, subjects
from ferrule.bench.streaming import disk_of, kept_in
from ferrule.lab import Lab, Shaping, mesh, pair
from ferrule.model import ModelSpec, read_model
from ferrule.plan import STREAMED, ClusterSpec, DeviceSpec, PairSpec, Plan, Prediction, Question, Workload, predict
from ferrule.plan.cluster.profile import emulated_rail
from ferrule.plan.cost import calibrate, calibrated, record_of
from ferrule.plan.cost.memory import memory_of
from ferrule.plan.device.contention import ALL_KEPT, CoresTogether, Kept
from ferrule.plan.device.measure import measure_device
from ferrule.process import usable_cores

WARM = 128
"""Tokens of cache that an engine holds when its peak is read."""
TOKENS = 16
"""Timed in a turn."""
LEAST_SECONDS, MANY_TOKENS = 0.1, 256
"""Tokens that are over sooner may all have come while this process waited for a core: then so many are timed."""
QUIET = 0.04
"""Of all processors, what others may have during a turn."""
TRIES = 3
"""Turns until one is quiet."""
ROUNDS = 15
"""A single one is off by a quarter either way where memory is at times half as fast as at others."""


@dataclass(frozen=True)
class PlannedRow:
    """Milliseconds per token of a single stream, on average over rounds. ``split``: as options say it; ``calibrates``:
    it is that by which all are predicted; ``reads``: from disk with every token.

    ``alone_ms``: what the model's single rank took in the same rounds. ``together``: what a core kept of its speed then
    while all computed. ``held_out_ms``: predicted when only single ranks of other models calibrate; None where there
    are none. ``memory_mib`` and ``predicted_memory_mib``: the peak of private memory of the fullest rank."""

    model: str
    split: str
    hosts: int
    calibrates: bool
    reads: bool
    cables: Cables
    measured_ms: float
    alone_ms: float
    together: float
    predicted_ms: float
    held_out_ms: float | None
    memory_mib: float
    predicted_memory_mib: float

    @property
    def measured(self) -> float:
        """In times of the single rank."""
        return self.measured_ms / self.alone_ms

    @property
    def predicted(self) -> float:
        """In times of the single rank."""
        return self.predicted_ms / self.alone_ms

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1

    @property
    def held_out_error(self) -> float | None:
        return None if self.held_out_ms is None else self.held_out_ms / self.measured_ms - 1

    @property
    def memory_error_mib(self) -> float:
        return self.predicted_memory_mib - self.memory_mib


@dataclass(frozen=True)
class Turn:
    """Seconds of the median token, and how much of the machine others had meanwhile."""

    seconds: float
    others: float


@dataclass(frozen=True)
class Round:
    """Measurements made one right after the other, since a virtual machine's speed changes within seconds: what a core
    kept of its speed, the single rank of each model, a split with each kind of cables, and bytes per second of the disk
    that it reads; None: none."""

    kept: Kept
    alone: Mapping[Path, Turn]
    split: Mapping[Cables, Turn]
    disk: float | None = None

    def others(self, cables: Cables) -> float:
        """The most that others had of the machine in a turn that counts for the split with ``cables``."""
        return max(turn.others for turn in (*self.alone.values(), self.split[cables]))


@dataclass(frozen=True)
class Split:
    """One split of one model: its plan, the largest peak of a rank's memory, its rounds; plans of the single ranks."""

    plan: Plan
    peak: int
    alone: Mapping[Path, Plan]
    rounds: Sequence[Round]

    def quiet(self, cables: Cables) -> list[Round]:
        """The rounds that others left alone, or the one that they disturbed least."""
        least = min(each.others(cables) for each in self.rounds)
        return [each for each in self.rounds if each.others(cables) <= max(QUIET, least)]


@dataclass(frozen=True)
class Here:
    """This machine: one thread of it as a device, its cores, and what each of them keeps while all compute."""

    device: DeviceSpec
    cores: int
    kept: Kept = ALL_KEPT


def bench_planned(*, quick: bool, rounds: int, say: Callable[[str], None]) -> list[PlannedRow]:
    """Raises `LabError` where there can be no lab."""
    rows: list[PlannedRow] = []
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as scratch, kept_in(Path(scratch)):
        saved: dict[Path, Subject] = {}
        for subject in subjects(quick=quick):
            say(f"making a random {subject.shape.name} model")
            saved[subject.save(Path(scratch))] = subject
        say("measuring this machine")
        here = Here(measure_device("host", rank=RANK, unit="cpu", threads=1, fresh=True), usable_cores())
        for directory, subject in saved.items():
            singles = [each for each, other in saved.items() if other.calibrates or each == directory]
            found = asyncio.run(race(directory, subject.settings, singles, rounds, 1 if quick else TRIES, say))
            rows += rows_of(directory, found, here)
    return rows


async def race(
    directory: Path,
    settings: Sequence[Setting],
    directories: Sequence[Path],
    rounds: int,
    tries: int,
    say: Callable[[str], None],
) -> dict[Setting, Split]:
    """All splits of one model, one after the other, each in turns with the single ranks of the models in
    ``directories``; and that of its own as a split."""
    found: dict[Setting, Split] = {}
    singles: list[Round] = []
    bystanders = Bystanders()
    async with AsyncExitStack() as stack:
        together = stack.enter_context(CoresTogether(max(setting.ranks for setting in settings)))
        alone = {each: await stack.enter_async_context(_engine(each, ALONE)) for each in directories}
        plans = {each: one.plan for each, one in alone.items()}
        for setting in settings:
            made: list[Round] = []
            async with _engine(directory, setting) as split:
                for number in range(rounds):
                    say(f"{directory.name}: {setting.text}, round {number + 1}")
                    kept = together.measure()
                    single = {each: await one.turn(Cables(), tries, bystanders) for each, one in alone.items()}
                    turns = {cables: await split.turn(cables, tries, bystanders) for cables in setting.cables}
                    disk = None
                    if setting.resident is not None:
                        disk, _ = await asyncio.to_thread(disk_of, setting.ranks)
                    made.append(Round(kept, single, turns, disk))
                    singles.append(Round(kept, single, {Cables(): single[directory]}))
                found[setting] = Split(split.plan, split.peak, plans, made)
        return {ALONE: Split(plans[directory], alone[directory].peak, plans, singles), **found}


@dataclass(frozen=True)
class _Engine:
    ferrule: Ferrule
    lab: Lab

    @property
    def plan(self) -> Plan:
        return self.ferrule.engine.plan

    @property
    def peak(self) -> int:
        """Of the fullest rank's private memory."""
        return max(info.peak_bytes for info in self.ferrule.engine.ranks)

    async def turn(self, cables: Cables, tries: int, bystanders: Bystanders) -> Turn:
        """The first of some that others leave alone; else that which they disturbed least."""
        for cable in self.lab.cables:
            cable.shape(delay=cables.delay, rate=cables.rate)
        turns: list[Turn] = []
        while len(turns) < tries and (not turns or turns[-1].others > QUIET):
            bystanders.begin()
            seconds = await self._tokens(TOKENS)
            if sum(seconds) < LEAST_SECONDS:
                seconds = await self._tokens(MANY_TOKENS)
            turns.append(Turn(seconds_per_token(seconds), bystanders.share()))
        return min(turns, key=lambda turn: turn.others)

    async def _tokens(self, count: int) -> list[float]:
        """The seconds that each took. The first one before them may still have met the cables as they were."""
        return (await self.ferrule.turn(count + 1))[1:]


@asynccontextmanager
async def _engine(directory: Path, setting: Setting) -> AsyncIterator[_Engine]:
    model = read_model(str(directory))
    with Lab(mesh(setting.ranks) if setting.ranks > 1 else pair()) as lab:
        async with Ferrule(setting.options(directory, model), lab, setting.plan(model)) as ferrule:
            await ferrule.turn(4)
            yield _Engine(ferrule, lab)


def rows_of(directory: Path, found: Mapping[Setting, Split], here: Here) -> list[PlannedRow]:
    """Measurements of the model in ``directory`` beside predictions."""
    specs = {source: read_model(str(source)) for source in found[ALONE].alone}
    return [
        _row(specs, directory, setting, cables, split, here)
        for setting, split in found.items()
        for cables in setting.cables
    ]


def _cluster(here: Here, ranks: int, cables: Cables) -> ClusterSpec:
    names = [f"host-{rank}" for rank in range(ranks)]
    rail = emulated_rail("cable", Shaping(delay=cables.delay, rate=cables.rate))
    devices = tuple(replace(here.device, name=name, kind=here.device.kind) for name in names)
    pairs = tuple(PairSpec(ends, (rail,)) for ends in combinations(names, 2))
    kept = here.kept
    return ClusterSpec(devices, pairs, here.cores, (), kept.together, kept.in_turns, kept.awake)


def _work() -> Workload:
    return Workload(context=WARM, prompt=PROMPT)


def _calibrated(
    here: Here, specs: Mapping[Path, ModelSpec], plans: Mapping[Path, Plan], turns: Mapping[Path, Turn]
) -> Here:
    """By what single ranks did."""
    device = here.device
    cluster = _cluster(here, 1, Cables())
    records = [
        record_of(Question(specs[source], cluster, _work()), plans[source].on(["host-0"]), turn.seconds, at=time.time())
        for source, turn in turns.items()
    ]
    (found,) = calibrate([record for record in records if record is not None], {device.kind: device})
    return replace(here, device=calibrated(device, {found.kind: found}))


def _row(
    specs: Mapping[Path, ModelSpec], directory: Path, setting: Setting, cables: Cables, split: Split, here: Here
) -> PlannedRow:
    """On average over the quiet rounds: on a machine that is at times half as fast as at others, the median of a few is
    the one or the other."""
    rounds = split.quiet(cables)
    model = specs[directory]
    own: list[Prediction] = []
    held_out: list[Prediction] = []
    for each in rounds:
        others = {source: turn for source, turn in each.alone.items() if source != directory}
        for predictions, by in ((own, each.alone), (held_out, others)):
            if by:
                now = _calibrated(replace(here, kept=each.kept), specs, split.alone, by)
                cluster = _cluster(now, setting.ranks, cables)
                plan = split.plan.on([device.name for device in cluster.devices])
                question = Question(model, cluster, _work())
                if each.disk is not None:
                    question = _streamed(question, plan, setting.room(model), each.disk)
                predictions.append(predict(question, plan))
    return PlannedRow(
        model.name,
        setting.text,
        setting.ranks,
        setting == ALONE,
        setting.resident is not None,
        cables,
        statistics.mean(each.split[cables].seconds for each in rounds) * 1e3,
        statistics.mean(each.alone[directory].seconds for each in rounds) * 1e3,
        statistics.mean(each.kept.together for each in rounds),
        statistics.mean(each.token_seconds for each in own) * 1e3,
        statistics.mean(each.token_seconds for each in held_out) * 1e3 if held_out else None,
        split.peak / (1 << 20),
        max(use.total for use in own[0].memory) / (1 << 20),
    )


def _streamed(question: Question, plan: Plan, room: int | None, disk: float) -> Question:
    """On devices that have so little memory that ``room`` bytes are left for weights, and a disk of ``disk`` bytes per
    second."""
    devices = tuple(
        replace(device, memory=use.needed - use.weights + (room or use.weights), disk_read=disk)
        for device, use in zip(question.cluster.devices, memory_of(question, plan), strict=True)
    )
    return replace(question, cluster=replace(question.cluster, devices=devices), runtime=STREAMED)


@dataclass(frozen=True)
class Choice:
    """Of all that was measured of ``model`` on so many hosts: what the planner would have taken, and the best.

    The single rank is always a choice. All count by the single rank of the same rounds: the machine's speed drifts.
    ``loss``: how much slower the planner's first choice was."""

    model: str
    hosts: int
    cables: Cables
    chosen: PlannedRow
    best: PlannedRow

    @property
    def loss(self) -> float:
        return self.chosen.measured / self.best.measured - 1


def choices(rows: Sequence[PlannedRow]) -> list[Choice]:
    """For every model, number of hosts, and kind of cables."""
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == model]
        alone = [row for row in mine if row.calibrates]
        for hosts, cables in dict.fromkeys((row.hosts, row.cables) for row in mine if row.hosts > 1):
            among = [*alone, *(row for row in mine if (row.hosts, row.cables) == (hosts, cables))]
            chosen = min(among, key=lambda row: row.predicted)
            found.append(Choice(model, hosts, cables, chosen, min(among, key=lambda row: row.measured)))
    return found
