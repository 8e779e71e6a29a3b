"""Stock MLX and mlx-lm between two ranks: on Ferrule, and on MLX's own ring beside it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ferrule.bench.fabric.job import Job, JobError
from ferrule.bench.fabric.launchers import Setting, launch_mlx
from ferrule.bench.fabric.rank import Task
from ferrule.errors import FabricError
from ferrule.lab import Lab, pair

Backend = Literal["mpi", "ring"]
Where = Literal["this machine", "two hosts"]
BACKENDS: tuple[Backend, ...] = ("mpi", "ring")
START_SECONDS = 180.0
TURN_SECONDS = 120.0


@dataclass(frozen=True)
class Subject:
    """``op`` and ``count``: of the ranks' tasks. ``samples``: of a turn. ``bar``, ``lab_bar``: by how much Ferrule is
    to be quicker between ranks of one machine and of two hosts; None: nothing is asked."""

    what: str
    op: str
    count: int
    samples: int
    bar: float | None = None
    lab_bar: float | None = None


SUBJECTS = (
    Subject("evaluation alone", "evaluate", 2048, 200),
    Subject("all_sum of 64 B", "all_reduce", 16, 200),
    Subject("all_sum of 8 KiB", "all_reduce", 2048, 200, bar=2.0, lab_bar=1.2),
    Subject("all_sum of 1 MiB", "all_reduce", 1 << 18, 10),
    Subject("a token of 4 M parameters", "decode", 4_000_000, 1, bar=1.3),
    Subject("a token of 60 M parameters", "decode", 60_000_000, 1, bar=1.0),
)


@dataclass(frozen=True)
class MlxRow:
    """Medians in microseconds, of a call or of a token. ``ratio``: by how much Ferrule is quicker, the median over the
    turns, which both take one after the other. ``bar``: how much that should be, at least."""

    where: Where
    what: str
    ferrule_us: float
    ring_us: float
    ratio: float
    bar: float | None

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.ratio >= self.bar


def bench_mlx(
    *, lab: bool, quick: bool, decode: bool = True, say: Callable[[str], None] = lambda line: None
) -> list[MlxRow]:
    """Between two ranks of this machine, and with ``lab`` of two emulated hosts. ``decode``: also tokens, for which
    mlx-lm has to be installed. Raises `FabricError` where a contestant fails, `LabError` where there can be no lab."""
    rows = _measure(None, quick, decode, say)
    if lab:
        with Lab(pair()) as two:
            rows += _measure(two, quick, decode, say)
    return rows


def _measure(lab: Lab | None, quick: bool, decode: bool, say: Callable[[str], None]) -> list[MlxRow]:
    where: Where = "this machine" if lab is None else "two hosts"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-bench-")))
        setting = Setting(folder, 2, None, lab)  # not pinned: MLX has threads of its own
        jobs: dict[Backend, Job] = {}
        for backend in BACKENDS:
            say(f"{where}: starting MLX on {_name(backend)}")
            jobs[backend] = Job(folder / backend, 2, partial(launch_mlx, setting, backend))
            stack.callback(jobs[backend].close)
        for backend, job in jobs.items():
            with _blamed(backend):
                job.meet(time.monotonic() + START_SECONDS)
        rows = []
        for one in SUBJECTS:
            if one.op == "decode" and not decode:
                continue
            say(f"{where}: {one.what}")
            bar = one.bar if lab is None else one.lab_bar
            rows.append(_compare(one, jobs, where, bar, turns=3 if quick else 21))
        return rows


def _compare(one: Subject, jobs: dict[Backend, Job], where: Where, bar: float | None, turns: int) -> MlxRow:
    """The first turn warms up."""
    medians: dict[Backend, list[float]] = {backend: [] for backend in jobs}
    for turn in range(turns + 1):
        for backend, job in jobs.items():
            with _blamed(backend):
                times = job.ask(Task(one.op, one.count, "float32", one.samples, backend, "-"), TURN_SECONDS)
            if turn:
                medians[backend].append(statistics.median(times))
    ours, ring = medians["mpi"], medians["ring"]
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, ring, strict=True))
    return MlxRow(where, one.what, statistics.median(ours), statistics.median(ring), ratio, bar)


@contextmanager
def _blamed(backend: Backend) -> Iterator[None]:
    """A failure of ``backend`` ends the benchmark: without one of the two there is nothing to compare."""
    try:
        yield
    except JobError as error:
        raise FabricError(f"MLX on {_name(backend)}: {error}") from error


def _name(backend: Backend) -> str:
    return "Ferrule" if backend == "mpi" else "its ring"
