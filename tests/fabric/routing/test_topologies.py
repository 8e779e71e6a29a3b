"""Ranks on five hosts, wired in one way or another: every collective is right for every type, and equal everywhere."""

from __future__ import annotations

import signal

import pytest
from ranks import Ranks, run_all

from ferrule.lab import Lab, Topology, chain, edges, mesh, ring, star

NOTICED_SECONDS = 2.0
"""The machine may be busy with other things."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]

EVERYTHING = ("every_collective", "point_to_point", "splits")

PARTIAL_MESH = edges(5, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)])
"""Pairs with a cable and pairs without, and a circle."""

TOPOLOGIES = [
    pytest.param(mesh(5), id="mesh"),
    pytest.param(chain(5), id="chain"),
    pytest.param(ring(5), id="ring"),
    pytest.param(star(5), id="star"),
    pytest.param(PARTIAL_MESH, id="partial mesh"),
]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_collective(topology: Topology) -> None:
    arguments = {"sizes": [0, 1, 4096, 70_001], "bfloat16": topology == PARTIAL_MESH}
    with Lab(topology) as lab:
        reports, *_ = run_all(*EVERYTHING, size=5, lab=lab, arguments=arguments, timeout=60)
    assert len({report["digest"] for report in reports}) == 1


def test_seven_hosts_in_a_chain() -> None:
    with Lab(chain(7)) as lab:
        reports, _ = run_all("every_collective", "splits", size=7, lab=lab, arguments={"sizes": [1, 4096]}, timeout=60)
    assert "tcp via rank 1, rank 2, rank 3, rank 4, rank 5" in reports[0]["text"]


def test_two_ranks_on_each_host_of_a_chain() -> None:
    with Lab(chain(3)) as lab:
        reports, _ = run_all("every_collective", "splits", size=6, lab=lab, arguments={"sizes": [1, 4096]}, timeout=60)
    # Ranks 0 and 3 are on the first host, 2 and 5 on the last.
    lines = [line for line in reports[0]["text"].splitlines() if line.startswith("  rank ")]
    assert ["via rank 1" in line for line in lines] == [False, True, False, False, True]
    assert ["shared memory" in line for line in lines] == [False, False, True, False, False]


def test_a_rank_between_that_is_killed_is_named_by_all() -> None:
    with Lab(chain(4)) as lab:
        with Ranks("idle", 4, lab=lab, timeout=20.0) as ranks:
            ranks.reports()
            killed = ranks.signal(1, signal.SIGKILL)
            reports = [ranks.next(rank) for rank in (0, 2, 3)]
        # The last one does nothing, the others wait for it.
        with Ranks("lost", 4, lab=lab, arguments={"op": "all_reduce"}, timeout=20.0) as ranks:
            ranks.reports()
            ranks.until_asleep(0)
            killed_busy = ranks.signal(1, signal.SIGKILL)
            busy = [ranks.next(rank) for rank in (0, 2)]
    for moment, report in [*((killed, report) for report in reports), *((killed_busy, report) for report in busy)]:
        assert (report["error"], report["rank"]) == ("PeerLost", 1), report
        assert report["at"] - moment < NOTICED_SECONDS


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_survivors_of_a_ring_find_another_way(fault: signal.Signals) -> None:
    """Three pairs of six talked through rank 1 or behind it; only rank 1 is lost."""
    with Lab(ring(6)) as lab, Ranks("reform", 6, lab=lab, arguments={"least": 5, "size": 20_000}) as ranks:
        ranks.reports()
        ranks.signal(1, fault)
        for rank in (0, 2, 3, 4, 5):
            report = ranks.next(rank)
            assert report["error"] is None, report
            assert report["first"] == [0, 2, 3, 4, 5]
            assert report["total"] == 0b111101
        ranks.signal(1, signal.SIGKILL)


def test_survivors_meet_over_the_cable_that_is_left() -> None:
    cables = [(0, 1), (0, 1), (1, 2), (1, 2), (0, 2), (0, 2)]
    with Lab(edges(3, cables)) as lab, Ranks("reform", 3, lab=lab, arguments={"least": 2}) as ranks:
        ranks.reports()
        lab.cables[2].cut()
        ranks.signal(0, signal.SIGKILL)
        for rank in (1, 2):
            report = ranks.next(rank)
            assert (report["error"], report.get("first")) == (None, [1, 2]), report


def test_a_chain_that_breaks_leaves_two_groups() -> None:
    with Lab(chain(5)) as lab, Ranks("reform", 5, lab=lab, arguments={"least": 3}) as ranks:
        ranks.reports()
        ranks.signal(2, signal.SIGKILL)
        for rank, left in ((0, [0, 1]), (1, [0, 1]), (3, [3, 4]), (4, [3, 4])):
            report = ranks.next(rank)
            assert report["error"] is None, report
            assert report["first"] == left
