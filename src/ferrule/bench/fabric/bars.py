"""Performance targets of Ferrule on one machine, and a report of measured rows against them. Pure but for the run.

The numbers are the project's own: a collective between two ranks of one machine should cost little more than the
machine's limit, and less than the best peer's; several cables should carry what all of them can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import sub, truediv

from ferrule.bench.fabric.rows import Row, added, find_row, in_pairs
from ferrule.bench.fabric.run import FabricBench, bench_fabric
from ferrule.bench.fabric.sweep import PEERS, Sweep
from ferrule.bench.rails import RailsBench, bench_rails
from ferrule.errors import LabError
from ferrule.units import format_bytes

SMALL = (64, 512, 4 << 10, 8 << 10, 32 << 10)
LARGE = 64 << 20
TINY = 8
CABLES = (1e9, 0.4e9)
"""Bits per second."""

PAIR = Sweep(sizes=(*SMALL, LARGE))
CROWD = Sweep(sizes=(TINY,), ranks=(4, 8))
BUSY = Sweep(sizes=(TINY,), impls=("ferrule-native",), busy=True)


@dataclass(frozen=True)
class Bar:
    """``median`` and ``minimum``: what was measured, by the medians and by the minima of both sides; None if not.

    ``limit`` in ``unit`` ("×" or "µs") is an upper one, or a lower one with ``at_least``.
    """

    what: str
    limit: float
    unit: str
    median: float | None
    minimum: float | None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """By the median turn: a minimum may be luck, since a rank that comes late finds the others' data waiting."""
        if self.median is None:
            return None
        return self.median >= self.limit if self.at_least else self.median <= self.limit


def measure_bars(*, quick: bool, say: Callable[[str], None] = lambda line: None) -> tuple[list[Bar], FabricBench]:
    """Measure everything that the bars need. The result's rows are those of the undisturbed ranks of this host."""
    pair, crowd, busy = (bench_fabric(replace(sweep, quick=quick), say) for sweep in (PAIR, CROWD, BUSY))
    notes = dict.fromkeys((*pair.notes, *crowd.notes, *busy.notes))
    say("all_reduce between two emulated hosts over two cables")
    cables = None
    try:
        cables = bench_rails(CABLES, seconds=2.0 if quick else 5.0)
    except LabError as error:
        notes[f"no emulated hosts here: {error}"] = None
    bars = [*pair_bars(pair.rows), *crowd_bars(crowd.rows), *busy_bars(busy.rows), cables_bar(cables)]
    return bars, FabricBench((*pair.rows, *crowd.rows), tuple(notes))


def pair_bars(rows: Sequence[Row]) -> list[Bar]:
    """Two ranks."""
    bars = []
    for transport, factor in (("shm", 2.0), ("tcp", 1.5)):
        for size in SMALL:
            ours = find_row(rows, op="all_reduce", impl="ferrule-native", transport=transport, bytes=size)
            raw = find_row(rows, impl="raw", transport=transport, bytes=size)
            mpi = find_row(rows, op="all_reduce", impl="openmpi", transport=transport, bytes=size)
            where = f"{transport} {format_bytes(size)}"
            bars.append(_ratio(f"{where}: native / raw one way", factor, ours, raw))
            if transport == "tcp":
                exchange = find_row(rows, impl="raw", transport="tcp-both", bytes=size)
                bars.append(_ratio(f"{where}: native / raw both ways", 1.25, ours, exchange))
            bars.append(_ratio(f"{where}: native / Open MPI", 1.0, ours, mpi))
    for transport, factor in (("shm", 1.5), ("tcp", 1.0)):
        large = [row for row in rows if row["op"] == "all_reduce" and row["bytes"] == LARGE]
        ours = find_row(large, impl="ferrule-native", transport=transport)
        peers = [row for row in large if row["impl"] in ("gloo", "openmpi")]
        if transport == "tcp":
            peers = [row for row in large if row["impl"] in PEERS and row["transport"] == "tcp"]
        best = min(peers, key=lambda row: row["median_us"], default=None)
        name = "the best peer" if best is None else f"{best['impl']} {best['transport']}"
        what = f"{transport} {format_bytes(LARGE)}: bandwidth / {name}"
        bars.append(replace(_ratio(what, factor, best, ours), at_least=True))
    native, python, torch = (
        find_row(rows, op="all_reduce", impl=impl, transport="shm", bytes=SMALL[0])
        for impl in ("ferrule-native", "ferrule", "ferrule-torch")
    )
    alone = find_row(rows, impl="raw", transport="torch", bytes=SMALL[0])
    native_and_alone = None if native is None or alone is None else added(native, alone)
    where = f"shm {SMALL[0]} B"
    bars.append(_difference(f"{where}: Python − native", 1.0, python, native))
    bars.append(_difference(f"{where}: torch.distributed − native", 3.5, torch, native))
    bars.append(_difference(f"{where}: torch.distributed − native − torch alone", 1.5, torch, native_and_alone))
    return bars


def crowd_bars(rows: Sequence[Row]) -> list[Bar]:
    """More ranks, as a rule than cores."""
    bars = []
    for ranks in CROWD.ranks:
        mpi = find_row(rows, impl="openmpi", transport="tcp", ranks=ranks)
        for transport in CROWD.transports:
            ours = find_row(rows, impl="ferrule-native", transport=transport, ranks=ranks)
            where = f"{ranks} ranks, {transport} {TINY} B"
            bars.append(_ratio(f"{where}: native / Open MPI tcp", 1.0, ours, mpi))
            p99 = None if ours is None else ours["p99_us"]
            bars.append(Bar(f"{where}: 99 % of native", 2000.0, "µs", p99, p99))
    return bars


def busy_bars(rows: Sequence[Row]) -> list[Bar]:
    """Two ranks with another busy process on every core."""
    bars = []
    for transport in BUSY.transports:
        row = find_row(rows, impl="ferrule-native", transport=transport)
        median, minimum = (None, None) if row is None else (row["median_us"], row["min_us"])
        bars.append(Bar(f"busy cores, {transport} {TINY} B: native", 100.0, "µs", median, minimum))
    return bars


def cables_bar(bench: RailsBench | None) -> Bar:
    """Two hosts with two cables of unequal speed. What an all_reduce gets of what plain sockets get, one per cable."""
    rates = " + ".join(f"{rate / 1e9:g}" for rate in CABLES)
    median, best = (None, None) if bench is None else (bench.share, bench.best_share)
    return Bar(f"cables, {rates} Gb/s: all_reduce / sum", 0.95, "×", median, best, at_least=True)


def _ratio(what: str, limit: float, row: Row | None, reference: Row | None) -> Bar:
    if row is None or reference is None:
        return Bar(what, limit, "×", None, None)
    return Bar(what, limit, "×", in_pairs(row, reference, truediv), row["min_us"] / reference["min_us"])


def _difference(what: str, limit: float, row: Row | None, reference: Row | None) -> Bar:
    if row is None or reference is None:
        return Bar(what, limit, "µs", None, None)
    return Bar(what, limit, "µs", in_pairs(row, reference, sub), row["min_us"] - reference["min_us"])
