"""Run a sweep: every contestant's processes at once, taking turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ferrule.bench.fabric.contestants import IN_LABS, group_by_job, limits_of, missing, start_job
from ferrule.bench.fabric.job import Job, JobError
from ferrule.bench.fabric.launchers import Setting, pick_cpus
from ferrule.bench.fabric.rows import Row, make_row
from ferrule.bench.fabric.sweep import IMPLS, OURS, Cell, Contestant, Sweep, Turns, plan_turns, rounds
from ferrule.errors import ConfigError, FabricError
from ferrule.lab import Lab
from ferrule.launch import LocalLauncher

_START_SECONDS = 180.0
_TURN_SECONDS = 120.0
_LONG_CALL = 10_000.0
"""Microseconds; one call that takes longer tells enough."""


@dataclass(frozen=True)
class FabricBench:
    """``rows`` in the order of measuring; ``notes``: what was left out or is to be taken with care."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def bench_fabric(
    sweep: Sweep, say: Callable[[str], None] = lambda line: None, *, lab: Lab | None = None
) -> FabricBench:
    """Measure all that ``sweep`` asks for; ``say`` gets a line about what is happening.

    ``lab``: on its hosts instead of on this machine; there only Ferrule and Gloo take part. Ranks are pinned to a
    core each where there are enough. Raises `ConfigError` when an implementation that was asked for by name is not
    installed, `FabricError` when a rank of Ferrule fails. Others that fail are left out.
    """
    available, notes = _available(sweep)
    if lab is not None:
        available = [impl for impl in available if impl in IN_LABS]
    rows: list[Row] = []
    with ExitStack() as stack:
        if sweep.busy:
            stack.enter_context(_busy_cores())
        for ranks in sweep.ranks:
            with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as folder:
                setting = Setting(Path(folder), ranks, pick_cpus(ranks), lab)
                if setting.cpus is None:
                    notes.append(f"{ranks} ranks do not get a core each here: not pinned, expect waiting")
                # They poll without pause, so beside busy processes they would only show the scheduler.
                contestants = sweep.contestants(available)
                if ranks == sweep.ranks[0] and not sweep.busy and lab is None:
                    contestants += limits_of(contestants)
                with _Field(contestants, setting, notes, say) as field:
                    cells, left_out = sweep.cells(ranks)
                    notes += left_out
                    for cell in cells:
                        rows += field.measure(cell, quick=sweep.quick, crowded=sweep.busy or setting.cpus is None)
    return FabricBench(tuple(rows), tuple(dict.fromkeys(notes)))


def _available(sweep: Sweep) -> tuple[list[str], list[str]]:
    """Implementations that take part, and notes about the others."""
    reasons = {impl: missing(impl) for impl in IMPLS}
    if sweep.impls is not None:
        for impl in sweep.impls:
            if reasons[impl] is not None:
                raise ConfigError(f"--impls: {impl} cannot take part: {reasons[impl]}")
        return list(sweep.impls), []
    notes = [f"{impl} does not take part: {reason}" for impl, reason in reasons.items() if reason is not None]
    return [impl for impl, reason in reasons.items() if reason is None], notes


class _Field:
    """All contestants of one number of ranks, running."""

    def __init__(
        self,
        contestants: Sequence[Contestant],
        setting: Setting,
        notes: list[str],
        say: Callable[[str], None],
    ) -> None:
        self._notes = notes
        self._say = say
        self._limits_done: set[int] = set()
        self._jobs: dict[Contestant, Job] = {}
        self._started: list[Job] = []
        try:
            for group in group_by_job(contestants):
                say(f"starting {group[0].impl} on {setting.ranks} ranks")
                self._start(group, setting)
            self._meet(time.monotonic() + _START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> _Field:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """All at once, since some libraries take seconds to end."""
        with ThreadPoolExecutor(max(1, len(self._started))) as pool:
            list(pool.map(Job.close, self._started))

    def _start(self, group: list[Contestant], setting: Setting) -> None:
        try:
            job = start_job(group, setting)
        except JobError as error:
            self._blame(group[0], error, "")
        else:
            self._started.append(job)
            self._jobs |= dict.fromkeys(group, job)

    def _meet(self, deadline: float) -> None:
        for contestant, job in list(self._jobs.items()):
            if contestant in self._jobs and not job.met:
                try:
                    job.meet(deadline)
                except JobError as error:
                    self._blame(contestant, error, "")

    def measure(self, cell: Cell, *, quick: bool, crowded: bool) -> list[Row]:
        """Everyone in turn, some calls each, many times over."""
        self._say(f"{cell.op} of {cell.bytes} bytes of {cell.dtype} between {cell.ranks} ranks")
        playing: dict[Contestant, Turns] = {}
        for contestant in self._entering(cell):
            estimate = self._warm_up(contestant, cell)
            if estimate is not None:
                playing[contestant] = plan_turns(estimate, quick=quick, crowded=crowded)
        played: dict[Contestant, list[list[float]]] = {contestant: [] for contestant in playing}
        of = rounds(quick)
        for turn in range(of):
            for contestant, turns in playing.items():
                played[contestant].append([])
                if contestant in self._jobs and turns.takes(turn, of):
                    times, elapsed = self._play(contestant, cell, turns.dropped + turns.samples)
                    played[contestant][-1] = times[turns.dropped :]
                    playing[contestant] = turns.after(elapsed, quick=quick)
        return [make_row(cell, who, turns, self._rails_of(who)) for who, turns in played.items() if any(turns)]

    def _rails_of(self, contestant: Contestant) -> int:
        """As its ranks found them: as many as were asked for per interface, of which there may be several."""
        job = self._jobs.get(contestant)
        return contestant.rails if job is None else job.rails.get(contestant.transport, contestant.rails)

    def _entering(self, cell: Cell) -> list[Contestant]:
        """Contestants that can take part; the limits only once per size, whatever the operation."""
        limits = cell.bytes not in self._limits_done
        self._limits_done.add(cell.bytes)
        return [c for c in self._jobs if c.can(cell.op, cell.dtype) and (limits or c.impl != "raw")]

    def _warm_up(self, contestant: Contestant, cell: Cell) -> float | None:
        """Microseconds that a call takes, roughly and rather too long; None if it fails."""
        times, elapsed = self._play(contestant, cell, 2)
        if times and times[-1] < _LONG_CALL:
            times, elapsed = self._play(contestant, cell, max(2, min(200, int(_LONG_CALL / times[-1]))))
        return elapsed / len(times) if times else None

    def _play(self, contestant: Contestant, cell: Cell, samples: int) -> tuple[list[float], float]:
        """The samples, and the microseconds that all of it took."""
        begin = time.perf_counter()
        try:
            times = self._jobs[contestant].play(contestant, cell, samples, _TURN_SECONDS)
        except JobError as error:
            self._blame(contestant, error, f"{cell.op} of {cell.dtype}: ")
            times = []
        return times, (time.perf_counter() - begin) * 1e6

    def _blame(self, contestant: Contestant, error: JobError, where: str) -> None:
        """Go on without a peer that fails; a failure of our own ends it all."""
        if contestant.impl in (*OURS, "raw"):
            raise FabricError(f"{contestant}: {where}{error}") from error
        self._notes.append(f"{contestant} is left out: {where}{error}")
        if error.lost:
            lost = self._jobs[contestant]
            self._jobs = {other: job for other, job in self._jobs.items() if job is not lost}


def _busy_cores() -> LocalLauncher:
    """A process per core that burns it; the kernel kills them with us."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pins = [[cpu] for cpu in cpus] or None
    return LocalLauncher([sys.executable, "-S", "-c", "while True: pass"], len(cpus) or os.cpu_count() or 1, cpus=pins)
