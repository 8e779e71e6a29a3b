"""Those that are left go on without those that are lost."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from in_threads import on_all, thread_groups
from ranks import Ranks, run

from ferrule.errors import FabricError
from ferrule.fabric import Group


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_survivors_go_on_until_one_is_left(transport: str) -> None:
    with Ranks("reform", 4, transport=transport, arguments={"least": 1}) as ranks:
        ranks.reports()
        left = [0, 1, 2, 3]
        for lost in (2, 0, 3):  # in between the leader
            ranks.signal(lost, signal.SIGKILL)
            left.remove(lost)
            for rank in left:
                report = ranks.next(rank)
                assert report["error"] is None, report
                assert report["first"] == left
                assert report["total"] == sum(1 << one for one in left)
                assert report["transports"] == (transport if len(left) > 1 else "self")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_is_lost_while_the_new_group_is_made(lost: int) -> None:
    """At whatever moment that is, the rest ends up in one group."""
    for delay in (0.0, 0.005, 0.01, 0.02):
        with Ranks("reform", 4, arguments={"least": 2}) as ranks:
            ranks.reports()
            ranks.signal(3, signal.SIGKILL)
            time.sleep(delay)
            ranks.signal(lost, signal.SIGKILL)
            left = sorted({0, 1, 2} - {lost})
            for rank in left:
                report = ranks.next(rank)
                while report["error"] is None and report["first"] != left:
                    report = ranks.next(rank)
                assert report["error"] is None, report
                assert report["total"] == sum(1 << one for one in left)


def test_rank_that_was_given_up_cannot_come_back() -> None:
    with Ranks("reform", 3, arguments={"least": 2}, env={"FERRULE_HEARTBEAT": "300ms"}) as ranks:
        ranks.reports()
        ranks.signal(0, signal.SIGSTOP)
        for rank in (1, 2):
            assert ranks.next(rank)["first"] == [1, 2]
        ranks.signal(0, signal.SIGCONT)
        report = ranks.next(0)
        assert report["error"] == "FabricError", report
        assert "the others gave it up" in report["text"], report


@pytest.mark.slow
def test_rank_that_does_not_take_part_is_named() -> None:
    reports = run("one_stays_away", 3)
    for report in reports[:2]:
        assert report["error"] == "FabricTimeout", report
        assert "rank 2 did not call reform() within 0.5 s" in report["text"]


def test_no_rank_is_lost() -> None:
    """After an error of the program all ranks make the same group again."""
    for report in run("fail_and_reform", 3):
        assert report["origin"] == [0, 1, 2]
        assert "closed" in report["text"]


def test_a_closed_group_goes_on_with_the_connections_of_another() -> None:
    old, new = thread_groups(2), thread_groups(2)
    with pytest.raises(FabricError, match="cannot take the place"):
        old[0].take_over(new[0])
    on_all(old, Group.close)
    with pytest.raises(FabricError, match="cannot take the place"):
        old[0].take_over(new[1])
    for rank in range(2):
        old[rank].take_over(new[rank])
        assert old[rank].native_address == new[rank].native_address
    assert [float(x[0]) for x in on_all(old, lambda group: group.all_reduce(np.ones(1)))] == [2.0, 2.0]
    on_all(old, Group.close)
