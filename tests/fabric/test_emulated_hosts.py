"""Ranks on hosts of their own, joined by cables."""

from __future__ import annotations

import signal

import pytest
from ranks import Ranks, run

from ferrule.lab import Lab, pair, switch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]

NOTICED_SECONDS = 1.0


def test_two_hosts_and_one_cable_carry_every_collective() -> None:
    with Lab(pair()) as lab:
        here = run("sweep", 2, transport="tcp", arguments={"seed": 2, "count": 60})
        there = run("sweep", 2, lab=lab, arguments={"seed": 2, "count": 60})
        assert {report["digest"] for report in there} == {report["digest"] for report in here}
        run("point_to_point", 2, lab=lab)
        run("torch_types", 2, lab=lab)
        for rank, report in enumerate(run("splits", 2, lab=lab)):
            assert report["transports"] == "tcp"
            other = 1 - rank
            assert f"rank {other} on host{other}" in report["text"]
            assert lab.address(other, rank) in report["text"]


def test_two_ranks_on_each_host_use_shared_memory_inside() -> None:
    with Lab(pair()) as lab:
        reports = run("splits", 4, lab=lab)
        assert {report["transports"] for report in reports} == {"shm+tcp"}
        run("sweep", 4, lab=lab, arguments={"seed": 3, "count": 40})


def test_four_hosts_on_a_switch() -> None:
    with Lab(switch(4)) as lab:
        reports = run("splits", 4, lab=lab)
        assert {report["transports"] for report in reports} == {"tcp"}
        run("every_collective", 4, lab=lab, arguments={"sizes": [0, 1, 1000, 70_001]})


@pytest.mark.parametrize("op", ["all_reduce", "recv"])
def test_rank_killed_on_another_host_is_noticed_and_named(op: str) -> None:
    with Lab(pair()) as lab, Ranks("lost", 2, lab=lab, arguments={"op": op}) as ranks:
        ranks.reports()
        ranks.until_asleep(0)
        killed = ranks.signal(1, signal.SIGKILL)
        report = ranks.next(0)
        assert (report["error"], report["rank"]) == ("PeerLost", 1)
        assert "rank 1 on host1" in report["text"]
        assert report["at"] - killed < NOTICED_SECONDS


def test_nothing_hangs_on_a_cut_cable() -> None:
    """Both ends give up by their deadline at the latest, and then the group is over for good."""
    with Lab(pair()) as lab, Ranks("lost", 2, lab=lab, arguments={"op": "recv"}, timeout=3.0) as ranks:
        ranks.reports()
        ranks.until_asleep(0)
        lab.cables[0].cut()
        report, again = ranks.next(0), ranks.next(0)
        assert report["error"] in ("FabricTimeout", "PeerLost")
        assert report["took"] < 10.0
        assert again["text"] == report["text"]
