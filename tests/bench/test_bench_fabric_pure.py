"""Calculations of the fabric's benchmark: cells, counts, turns, bandwidths, bars, lines of the picture."""

from __future__ import annotations

from operator import truediv

import pytest

from ferrule.bench.fabric.bars import LARGE, SMALL, busy_bars, cables_bar, crowd_bars, pair_bars
from ferrule.bench.fabric.contestants import TORCH_ALONE, group_by_job, limits_of
from ferrule.bench.fabric.operations import OPERATIONS, bus_gb_s
from ferrule.bench.fabric.plot import panels_of
from ferrule.bench.fabric.rows import Row, find_row, in_pairs, make_row, to_csv
from ferrule.bench.fabric.sweep import Cell, Contestant, Sweep, Turns, plan_turns, rounds, turn_us
from ferrule.bench.rails import Moment, RailsBench


@pytest.mark.parametrize(
    ("op", "ranks", "gb_s"),
    [
        # 1,000,000 bytes in 1,000 µs are 1 GB/s; times the bytes that cross the busiest link per byte of the array.
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("gather", 2, 0.5),
        ("scatter", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("send_recv", 2, 1.0),
        ("memcpy", 1, 1.0),
    ],
)
def test_bus_bandwidth(op: str, ranks: int, gb_s: float) -> None:
    assert bus_gb_s(op, 1_000_000, ranks, 1000.0) == pytest.approx(gb_s)


def test_who_shares_processes() -> None:
    contestants = Sweep(rails=(1, 2)).contestants(["ferrule", "ferrule-native", "ferrule-torch", "openmpi"])
    jobs = [[str(contestant) for contestant in job] for job in group_by_job(contestants)]
    assert jobs == [
        ["ferrule-native shm", "ferrule-native tcp", "ferrule shm", "ferrule tcp"],
        ["ferrule-native tcp ×2", "ferrule tcp ×2"],  # how many rails a rank has is for all its groups
        ["ferrule-torch shm"],
        ["ferrule-torch tcp"],
        ["ferrule-torch tcp ×2"],
        ["openmpi shm"],
        ["openmpi tcp"],
    ]


def test_a_part_is_the_whole_where_nothing_is_divided() -> None:
    assert OPERATIONS["all_reduce"].count(64, "float32", 4) == 16
    assert OPERATIONS["all_gather"].count(64, "float32", 4) == 4
    assert OPERATIONS["scatter"].count(64, "bfloat16", 8) == 4
    assert OPERATIONS["all_to_all"].count(64, "float32", 3) is None


def test_cells_in_order_and_what_is_left_out() -> None:
    sweep = Sweep(ops=("all_gather", "barrier", "broadcast"), sizes=(8, 96), dtypes=("float32", "float64"))
    cells, notes = sweep.cells(3)
    assert cells == [
        Cell("all_gather", 96, "float32", 3),
        Cell("all_gather", 96, "float64", 3),
        Cell("barrier", 0, "uint8", 3),
        *(Cell("broadcast", size, dtype, 3) for dtype in ("float32", "float64") for size in (8, 96)),
    ]
    assert notes == [f"all_gather of 8 bytes of {d} does not divide between 3 ranks: left out" for d in sweep.dtypes]
    assert [cell.count for cell in cells] == [8, 4, 0, 2, 24, 1, 12]


def test_contestants() -> None:
    available = ["ferrule", "ferrule-native", "gloo", "openmpi"]
    names = [str(contestant) for contestant in Sweep(transports=("shm", "auto")).contestants(available)]
    wanted = ["ferrule-native shm", "ferrule-native auto", "ferrule shm", "ferrule auto", "gloo tcp", "openmpi shm"]
    assert names == wanted
    assert [str(c) for c in Sweep(impls=("gloo",)).contestants(available)] == ["gloo tcp"]
    assert not Contestant("mlx-ring", "tcp").can("broadcast", "float32")
    assert not Contestant("openmpi", "shm").can("all_reduce", "bfloat16")
    assert Contestant("openmpi", "shm").can("all_gather", "bfloat16")


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("estimate_us", [0.1, 7.0, 2_000.0, 90_000.0, 5e6])
def test_turns_keep_to_the_budget(estimate_us: float, crowded: bool, quick: bool) -> None:
    turns = plan_turns(estimate_us, quick=quick, crowded=crowded)
    of = rounds(quick)
    assert sum(turns.takes(turn, of) for turn in range(of)) == turns.turns
    assert 3 <= turns.turns <= of
    if turns.turns > 3:
        assert turns.turns * turns.samples * estimate_us <= (0.2e6 if quick else 2e6)


def test_slow_contestants_sit_out_evenly() -> None:
    assert [turn for turn in range(12) if Turns(0, 1, 3).takes(turn, 12)] == [3, 7, 11]


def test_turns_shrink_when_the_ranks_lose_their_cores() -> None:
    turns = plan_turns(1.0, quick=True, crowded=True)
    assert turns.after(turn_us(True), quick=True) == turns
    assert turns.after(10 * turn_us(True), quick=True).samples == turns.samples // 10
    assert Turns(0, 1, 3).after(1e9, quick=True).samples == 1


def test_row_of_a_limit_says_what_it_is() -> None:
    cell = Cell("all_reduce", 2000, "float32", 4)
    row = make_row(cell, Contestant("ferrule", "tcp"), [[2.0, 1.0], [], [4.0]])
    assert (row["op"], row["ranks"], row["min_us"], row["median_us"]) == ("all_reduce", 4, 1.0, 2.0)
    assert (row["bus_gb_s"], row["turns_us"]) == (1.5, [1.5, None, 4.0])
    row = make_row(cell, Contestant("raw", "shm"), [[2.0]])
    assert (row["op"], row["ranks"], row["bus_gb_s"]) == ("send_recv", 2, 1.0)
    row = make_row(cell, Contestant("raw", "memory"), [[2.0]])
    assert (row["op"], row["ranks"]) == ("memcpy", 1)
    row = make_row(cell, Contestant("raw", "tcp-both"), [[2.0]])
    assert (row["op"], row["ranks"], row["bus_gb_s"]) == ("exchange", 2, 1.0)
    row = make_row(cell, TORCH_ALONE, [[2.0]])
    assert (row["op"], row["ranks"], row["bus_gb_s"]) == ("nothing", 2, 0.0)


def test_limits_are_those_of_the_machine_and_of_torch_where_that_takes_part() -> None:
    limits = limits_of([Contestant("ferrule-native", "tcp")])
    assert TORCH_ALONE not in limits
    assert group_by_job(limits) == [limits]
    limits = limits_of([Contestant("ferrule-torch", "tcp")])
    assert group_by_job(limits) == [limits[:-1], [TORCH_ALONE]]
    assert [op for op in ("all_reduce", "all_gather", "barrier") if TORCH_ALONE.can(op, "float32")] == ["all_reduce"]


def a_row(impl: str, transport: str, size: int, median: float, ranks: int = 2) -> Row:
    return make_row(Cell("all_reduce", size, "float32", ranks), Contestant(impl, transport), [[median]])


def test_rows_are_compared_turn_by_turn() -> None:
    cell, slow = Cell("all_reduce", 64, "float32", 2), [[9.0], [9.0], [18.0], [], [18.0]]
    ours = make_row(cell, Contestant("ferrule", "tcp"), slow)
    raw = make_row(cell, Contestant("raw", "tcp"), [[6.0], [6.0], [12.0], [1.0], []])
    assert ours["median_us"] / raw["median_us"] == 2.25
    assert in_pairs(ours, raw, truediv) == 1.5
    assert in_pairs(ours, make_row(cell, Contestant("raw", "tcp"), [[], [], [], [6.0]]), truediv) == 2.25
    bars = {bar.what: bar for bar in pair_bars([ours | {"impl": "ferrule-native"}, raw | {"op": "send_recv"}])}
    assert bars["tcp 64 B: native / raw one way"].median == 1.5


def test_csv_has_a_header_and_a_line_per_row() -> None:
    assert to_csv([a_row("gloo", "tcp", 64, 100.0)]) == (
        "op,bytes,dtype,transport,ranks,rails,impl,min_us,median_us,p99_us,bus_gb_s\n"
        "all_reduce,64,float32,tcp,2,1,gloo,100.0,100.0,100.0,0.00064\n"
    )


def test_bars_of_two_ranks() -> None:
    rows = [
        a_row("ferrule-native", "shm", 64, 0.3),
        a_row("ferrule", "shm", 64, 1.2),
        a_row("ferrule-torch", "shm", 64, 4.2),
        a_row("openmpi", "shm", 64, 0.2),
        a_row("raw", "shm", 64, 0.15),
        a_row("raw", "torch", 64, 3.0),
        a_row("ferrule-native", "tcp", 64, 6.0),
        a_row("raw", "tcp-both", 64, 5.0),
        a_row("ferrule-native", "shm", LARGE, 10_000.0),
        a_row("ferrule-native", "tcp", LARGE, 30_000.0),
        a_row("openmpi", "shm", LARGE, 20_000.0),
        a_row("gloo", "tcp", LARGE, 24_000.0),
    ]
    bars = {bar.what: bar for bar in pair_bars(rows)}
    assert len(bars) == 5 * len(SMALL) + 5
    assert bars["shm 64 B: native / raw one way"].median == pytest.approx(2.0)
    assert bars["shm 64 B: native / raw one way"].met is True
    assert bars["shm 64 B: native / Open MPI"].met is False
    assert bars["shm 512 B: native / raw one way"].met is None
    assert bars["shm 64 MiB: bandwidth / openmpi shm"].median == pytest.approx(2.0)
    assert bars["shm 64 MiB: bandwidth / openmpi shm"].met is True
    assert bars["tcp 64 MiB: bandwidth / gloo tcp"].median == pytest.approx(0.8)
    assert bars["tcp 64 MiB: bandwidth / gloo tcp"].met is False
    assert bars["shm 64 B: Python − native"].median == pytest.approx(0.9)
    assert bars["shm 64 B: Python − native"].met is True
    assert bars["shm 64 B: torch.distributed − native"].met is False
    assert bars["shm 64 B: torch.distributed − native − torch alone"].median == pytest.approx(0.9)
    assert bars["tcp 64 B: native / raw both ways"].median == pytest.approx(1.2)


def test_bars_of_many_ranks_and_busy_cores() -> None:
    rows = [a_row("ferrule-native", "tcp", 8, 30.0, 4), a_row("openmpi", "tcp", 8, 40.0, 4)]
    met = {bar.what: bar.met for bar in crowd_bars(rows)}
    assert met["4 ranks, tcp 8 B: native / Open MPI tcp"] is True
    assert met["4 ranks, tcp 8 B: 99 % of native"] is True
    assert met["8 ranks, shm 8 B: native / Open MPI tcp"] is None
    assert [bar.met for bar in busy_bars([a_row("ferrule-native", "tcp", 8, 120.0)])] == [None, False]


def test_bar_of_cables_of_unequal_speed() -> None:
    moments = (Moment(1.0, 0.8), Moment(2.0, 0.5), Moment(3.0, 0.8))
    bar = cables_bar(RailsBench((1e9, 0.6e9), 125_000_000, moments))
    assert (bar.median, bar.minimum, bar.met) == (pytest.approx(0.78125), pytest.approx(1.25), False)
    assert cables_bar(None).met is None


def test_picture_has_the_limits_in_every_panel() -> None:
    rows = [a_row("ferrule", "tcp", size, 1.0, ranks) for ranks in (2, 4) for size in (8192, 64)]
    rows += [a_row("raw", "tcp", 64, 1.0), a_row("raw", "memory", 64, 1.0)]
    rows.append(make_row(Cell("barrier", 0, "uint8", 2), Contestant("ferrule", "tcp"), [[1.0]]))
    panels = panels_of(rows)
    assert list(panels) == ["all_reduce of float32, 2 ranks", "all_reduce of float32, 4 ranks"]
    for lines in panels.values():
        assert [row["bytes"] for row in lines["ferrule", "tcp", 1]] == [64, 8192]
        assert list(lines) == [("ferrule", "tcp", 1), ("raw", "tcp", 1)]


def test_find_row() -> None:
    rows = [a_row("ferrule", "tcp", 64, 1.0), a_row("ferrule", "shm", 64, 2.0)]
    assert find_row(rows, transport="shm") is rows[1]
    assert find_row(rows, transport="shm", bytes=8) is None
