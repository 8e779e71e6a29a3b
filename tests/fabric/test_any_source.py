"""Receives from any rank: every message arrives once, whichever rank sends or leaves, and named receives go first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from in_threads import on_all, thread_groups
from ranks import run

from ferrule.errors import FabricError, FabricTimeout, PeerLost
from ferrule.fabric import Group

LONG = 300_000
"""Elements of a message that no buffer holds."""


def from_any(group: Group, x: np.ndarray) -> int:
    work = group.recv(x, None, blocking=False)
    work.wait(30)
    assert work.source is not None
    return work.source


@pytest.mark.parametrize("count", [1, LONG])
def test_all_messages_arrive_in_the_order_of_each_rank(count: int) -> None:
    each = 20 if count == 1 else 3

    def body(group: Group) -> None:
        if group.rank:
            for number in range(each):
                group.send(np.full(count, 100.0 * group.rank + number), 0)
            return
        seen: Counter[int] = Counter()
        for _ in range(3 * each):
            x = np.empty(count)
            source = from_any(group, x)
            assert (x == 100 * source + seen[source]).all()
            seen[source] += 1
        assert seen == {1: each, 2: each, 3: each}

    on_all(thread_groups(4), body)


def test_ranks_that_send_much_do_not_starve_others() -> None:
    def body(group: Group) -> None:
        if group.rank:
            for _ in range(50):
                group.send(np.ones(1), 0)
            group.barrier()
            return
        group.barrier()  # all are here by now
        sources = [from_any(group, np.empty(1)) for _ in range(100)]
        assert Counter(sources[:10]) == {1: 5, 2: 5}

    on_all(thread_groups(3), body)


def test_a_receive_that_names_its_rank_goes_first() -> None:
    def body(group: Group) -> None:
        if group.rank:
            group.barrier()
            group.send(np.full(2, float(group.rank)), 0)
            return
        one, any_, again = np.empty(2), np.empty(2), np.empty(2)
        works = [group.recv(any_, None, blocking=False), group.recv(one, 1, blocking=False)]
        group.barrier()
        for work in works:
            work.wait(30)
        assert (works[0].source, works[1].source) == (2, None)
        assert (one[0], any_[0]) == (1, 2)
        with pytest.raises(FabricTimeout, match=r"Timed out on rank 0: send/recv.*; waiting for rank 1, 2"):
            group.recv(again, None, timeout=0.1)

    groups = thread_groups(3)
    on_all(groups, body)


def test_what_was_looked_at_is_there_for_a_receive_that_names_its_rank() -> None:
    """The headers of two messages are read; one belongs to the receive from any rank, the other waits."""

    def body(group: Group) -> None:
        if group.rank:
            group.send(np.full(LONG, float(group.rank)), 0)
            return
        x, y = np.empty(LONG), np.empty(LONG)
        source = from_any(group, x)
        group.recv(y, 3 - source)
        assert (x == source).all()
        assert (y == 3 - source).all()

    on_all(thread_groups(3), body)


def test_a_rank_that_leaves_matters_only_when_it_is_the_last() -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            group.send(np.full(1, 1.0), 0)
            group.close()
        elif group.rank == 2:
            group.recv(np.empty(1), 0)
            group.send(np.full(1, 2.0), 0)
            group.close()
        else:
            assert from_any(group, np.empty(1)) == 1
            work = group.recv(np.empty(1), None, blocking=False)
            with pytest.raises(FabricTimeout):
                work.wait(0.3)
            group.send(np.empty(1), 2)
            work.wait(30)
            assert work.source == 2
            with pytest.raises(PeerLost, match="closed the group while it was still needed"):
                group.recv(np.empty(1), None)

    on_all(thread_groups(3), body)


def test_a_message_of_another_size_is_an_error() -> None:
    groups = thread_groups(3)
    groups[1].send(np.ones(2), 0)
    with pytest.raises(FabricError, match=r"rank 0 called .* 8 bytes.* but rank 1 called .* 16 bytes"):
        groups[0].recv(np.empty(1), None, timeout=30)
    for group in groups:
        group.close()


def test_a_group_of_one_is_told() -> None:
    (group,) = thread_groups(1)
    with group, pytest.raises(ValueError, match="group of one"):
        group.recv(np.empty(1), None)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_between_processes(transport: str, tmp_path: Path) -> None:
    reports = run("from_any", 3, transport=transport)
    assert reports[0]["seen"] == {"1": 205, "2": 205}
