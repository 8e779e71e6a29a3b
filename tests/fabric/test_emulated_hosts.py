"""Ranks on hosts of their own, joined by cables."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from ranks import Ranks, run, run_all

from ferrule.lab import Lab, pair, switch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]

NOTICED_SECONDS = 1.0
SILENCE_SECONDS = 2.0
"""0.8 s by default, and what a busy machine adds."""


def test_two_hosts_and_one_cable_carry_every_collective() -> None:
    with Lab(pair()) as lab:
        here = run("sweep", 2, transport="tcp", arguments={"seed": 2, "count": 60})
        cases = ("sweep", "point_to_point", "torch_types", "splits")
        there, _, _, splits = run_all(*cases, size=2, lab=lab, arguments={"seed": 2, "count": 60})
        assert {report["digest"] for report in there} == {report["digest"] for report in here}
        for rank, report in enumerate(splits):
            assert report["transports"] == "tcp"
            other = 1 - rank
            assert f"rank {other} on host{other}" in report["text"]
            assert lab.address(other, rank) in report["text"]


def test_two_ranks_on_each_host_use_shared_memory_inside() -> None:
    with Lab(pair()) as lab:
        reports, _ = run_all("splits", "sweep", size=4, lab=lab, arguments={"seed": 3, "count": 40})
    assert {report["transports"] for report in reports} == {"shm+tcp"}


def test_four_hosts_on_a_switch() -> None:
    with Lab(switch(4)) as lab:
        arguments = {"sizes": [0, 1, 1000, 70_001], "bfloat16": True}
        reports, _ = run_all("splits", "every_collective", size=4, lab=lab, arguments=arguments)
    assert {report["transports"] for report in reports} == {"tcp"}


def test_a_cable_that_one_socket_cannot_fill_gets_a_second_one() -> None:
    """2 ms each way and windows of 32 KiB: a socket carries 8 MB/s at most, two carry twice that, on busy cores too."""
    with Lab(pair().shaped(delay=2e-3)) as lab:
        for host in range(2):
            with lab.inside(host):
                for name in ("tcp_rmem", "tcp_wmem"):
                    Path("/proc/sys/net/ipv4", name).write_text("4096 32768 32768")
        arguments = {"sizes": [70_001]}
        reports, _ = run_all("sockets", "every_collective", size=2, lab=lab, arguments=arguments)
    for report in reports:
        assert "(cable0) × 2 sockets" in report["text"]
        assert report["bytes"][0] > 0, report
        assert report["bytes"][1] > 0, report


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


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
def test_cable_that_fails_ends_the_group_on_both_sides(fault: str) -> None:
    with Lab(pair()) as lab, Ranks("idle", 2, lab=lab, timeout=20.0) as ranks:
        ranks.reports()
        failed = time.monotonic()
        getattr(lab.cables[0], fault)()
        for rank in range(2):
            report, again = ranks.next(rank), ranks.next(rank)
            assert (report["error"], report["rank"]) == ("PeerLost", 1 - rank), report
            assert "no heartbeat for" in report["text"]
            assert lab.cables[0].interface in report["text"]
            assert report["at"] - failed < SILENCE_SECONDS
            assert again["text"] == report["text"]


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
def test_the_only_cable_fails_for_a_moment_in_mid_transfer(fault: str) -> None:
    """Three seconds of patience: after a cut the kernel looks for the peer's hardware address once per second."""
    options = {"arguments": {"seconds": 4.0}, "env": {"FERRULE_HEARTBEAT": "3"}}
    with Lab(pair()) as lab, Ranks("steadily", 2, lab=lab, **options) as ranks:
        ranks.reports()
        time.sleep(0.5)  # transfers are under way
        getattr(lab.cables[0], fault)()
        time.sleep(0.3)
        lab.cables[0].restore()
        first, second = ranks.reports()
        assert first["count"] == second["count"] > 0
        ranks.finish()


def test_all_ranks_blame_the_rank_whose_cable_failed() -> None:
    """One of four ranks on a switch is cut off: the others name it, and lose no other."""
    with Lab(switch(4)) as lab, Ranks("idle", 4, lab=lab, timeout=20.0) as ranks:
        ranks.reports()
        lab.cables[0].cut(2)
        reports = [ranks.next(rank) for rank in (0, 1, 3)]
        assert {report["rank"] for report in reports} == {2}, reports
