"""Operations that go on by themselves: order, independence of the streams, and how they end."""

from __future__ import annotations

import threading
from typing import Any

import in_threads
import numpy as np
import pytest
from in_threads import on_all, thread_groups

from ferrule.errors import FabricError, FabricTimeout, PeerLost
from ferrule.fabric import Group, Work

SECONDS = 20.0
LONG = 3_000_001
"""Bytes: more than the buffers between two ranks hold."""


def bytes_of(value: int, count: int = LONG) -> np.ndarray[Any, Any]:
    return np.full(count, value, np.uint8)


def run(size: int, body: Any) -> list[Any]:
    groups = thread_groups(size)
    results = on_all(groups, body)
    for group in groups:
        group.close()
    return results


def test_collectives_run_in_their_order() -> None:
    def body(group: Group) -> None:
        x, y = np.ones(1000), np.ones(70_000)
        first = group.all_reduce(x, blocking=False)
        second = group.all_reduce(y, "max", blocking=False)
        third = group.all_gather(np.array(group.rank), blocking=False)
        # One that blocks comes after those that were started.
        assert group.all_reduce(np.array([1])).tolist() == [3]
        assert all(work.done() for work in (first, second, third))
        assert first.wait() is x
        assert (x == 3).all()
        assert (second.wait() == 1).all()
        assert third.wait(0).tolist() == [0, 1, 2]

    run(3, body)


def test_call_right_after_the_end_of_one_that_was_started() -> None:
    """The thread that ran it may be about to leave; that is no second caller."""

    def body(group: Group) -> None:
        for _ in range(1000):
            work = group.all_reduce(np.ones(10), blocking=False)
            while not work.done():
                pass
            group.all_reduce(np.ones(10))

    run(2, body)


def test_every_operation_can_be_started() -> None:
    def body(group: Group) -> None:
        me = group.rank
        works: list[Work[Any]] = [
            group.all_reduce(np.ones(3), blocking=False),
            group.all_gather(np.full(2, me), blocking=False),
            group.reduce_scatter(np.arange(4), blocking=False),
            group.broadcast(np.full(2, me), 1, blocking=False),
            group.reduce(np.full(2, me + 1), 0, blocking=False),
            group.gather(np.full(1, me), 1, blocking=False),
            group.scatter(np.arange(2) if me == 0 else None, 0, np.zeros(1, np.int64), blocking=False),
            group.all_to_all(np.array([me, me + 10]), blocking=False),
            group.barrier(blocking=False),
        ]
        results = [work.wait(SECONDS) for work in works]
        assert results[0].tolist() == [2, 2, 2]
        assert results[1].tolist() == [0, 0, 1, 1]
        assert results[2].tolist() == [[0, 2], [4, 6]][me]
        assert results[3].tolist() == [1, 1]
        assert results[4].tolist() == [[3, 3], [2, 2]][me]
        assert (results[5] is None) if me == 0 else results[5].tolist() == [0, 1]
        assert results[6].tolist() == [me]
        assert results[7].tolist() == [[0, 1], [10, 11]][me]
        assert results[8] is None

    run(2, body)


def test_messages_wait_neither_for_collectives_nor_for_each_other() -> None:
    def body(group: Group) -> None:
        after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        into = np.empty(LONG, np.uint8)
        # Every rank sends first, more than any buffer holds.
        sent = group.send(bytes_of(group.rank), after, blocking=False)
        assert group.all_reduce(np.array([1]))[0] == group.size
        got = group.recv(into, before, blocking=False)
        assert group.all_reduce(np.array([1]))[0] == group.size
        sent.wait(SECONDS)
        assert got.wait(SECONDS) is into
        assert (into == before).all()

    run(3, body)


def test_messages_of_a_pair_keep_their_order() -> None:
    def body(group: Group) -> None:
        peer = 1 - group.rank
        sizes = [1, 200_000, 0, LONG, 5]
        into = [np.empty(size, np.uint8) for size in sizes]
        received = [group.recv(x, peer, blocking=False) for x in into]
        for number, size in enumerate(sizes):
            group.send(bytes_of(number, size), peer, blocking=False)
        for number, work in enumerate(received):
            assert (work.wait(SECONDS) == number).all()

    run(2, body)


def test_receive_from_one_does_not_hold_up_the_others() -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            x, y = np.zeros(1), np.zeros(1)
            slow = group.recv(x, 1, blocking=False)
            group.recv(y, 2)  # blocks here, beside the one that is under way
            group.send(y, 1)
            assert slow.wait(SECONDS)[0] == 7
        elif group.rank == 1:
            go = np.zeros(1)
            group.recv(go, 0)
            group.send(np.array([7.0]), 0)
        else:
            group.send(np.array([1.0]), 0)

    run(3, body)


def test_a_thread_that_sends_while_another_waits_to_receive() -> None:
    """A blocked thread may need an operation that another one has yet to start."""

    def body(group: Group) -> None:
        peer = 1 - group.rank
        started = threading.Event()

        def receive() -> None:
            started.set()
            group.recv(np.empty(LONG, np.uint8), peer)

        waiting = threading.Thread(target=receive)
        waiting.start()
        started.wait(SECONDS)
        group.send(bytes_of(1), peer, blocking=False).wait(SECONDS)
        waiting.join(SECONDS)
        assert not waiting.is_alive()

    run(2, body)


def test_coalesced_messages_run_at_once_and_reductions_as_one() -> None:
    def body(group: Group) -> None:
        peer = 1 - group.rank
        into = np.empty(LONG, np.uint8)
        arrays = [np.full(size, group.rank + 1.0) for size in (1, 10, 40_000, 7)]
        with group.coalesce():
            group.send(bytes_of(group.rank), peer)
            group.recv(into, peer)
            for array in arrays:
                group.all_reduce(array)
            total = group.all_reduce(np.array([group.rank]), "max")
        assert (into == peer).all()
        assert all((array == 3).all() for array in arrays)
        assert total.tolist() == [1]
        with group.coalesce(blocking=False) as batch:
            gathered = group.all_gather(np.array(group.rank))
            group.barrier()
        batch.wait(SECONDS)
        assert batch.done()
        assert gathered.tolist() == [0, 1]

    run(2, body)


def test_coalesce_does_not_nest_and_drops_what_an_error_interrupts() -> None:
    def body(group: Group) -> None:
        x = np.ones(1)
        with pytest.raises(FabricError, match="already"), group.coalesce(), group.coalesce():
            pass

        def interrupted() -> None:
            with group.coalesce():
                group.all_reduce(x)
                raise KeyError

        with pytest.raises(KeyError):
            interrupted()
        assert x[0] == 1
        group.barrier()

    run(2, body)


def test_a_wait_may_end_before_the_operation() -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            work = group.all_reduce(np.ones(2), blocking=False)
            with pytest.raises(FabricTimeout, match="goes on"):
                work.wait(0.01)
            assert not work.done()
            group.send(np.zeros(1), 1)
            assert work.wait(SECONDS).tolist() == [2, 2]
        else:
            group.recv(np.zeros(1), 0)
            group.all_reduce(np.ones(2))

    run(2, body)


def test_callbacks_are_called_once_it_is_done() -> None:
    def body(group: Group) -> None:
        called = threading.Event()
        work = group.all_reduce(np.ones(2), blocking=False)
        work.then(called.set)
        assert called.wait(SECONDS)
        later: list[int] = []
        work.wait()
        work.then(lambda: later.append(1))
        assert later == [1]

    run(2, body)


def test_a_failure_ends_everything_that_was_started() -> None:
    groups = thread_groups(2)
    works: list[Work[Any]] = [
        groups[0].all_reduce(np.ones(4), blocking=False),
        groups[0].all_gather(np.ones(4), blocking=False),
        groups[0].recv(np.ones(4), 1, blocking=False),
    ]
    groups[1].abort("enough")
    for work in works:
        with pytest.raises((FabricError, PeerLost), match="enough"):
            work.wait(SECONDS)
    for group in groups:
        with pytest.raises((FabricError, PeerLost)):
            group.barrier()
        group.close()


@pytest.mark.parametrize("yield_us", [0, 60_000_000])
def test_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch, yield_us: int) -> None:
    """It names the rank that is missing also where it passes before this one has gone to sleep."""
    monkeypatch.setattr(in_threads, "_YIELD_US", yield_us)
    groups = thread_groups(2)
    work = groups[0].recv(np.ones(4), 1, blocking=False, timeout=0.05)
    with pytest.raises(FabricTimeout, match="waiting for rank 1"):
        work.wait(SECONDS)
    for group in groups:
        group.close()


def test_close_finishes_what_was_started() -> None:
    def body(group: Group) -> None:
        x = np.ones(200_000)
        for _ in range(5):
            group.all_reduce(x, blocking=False)
        group.close()
        assert (x == 32).all()

    on_all(thread_groups(2), body)


def test_arrays_live_as_long_as_their_operation() -> None:
    def body(group: Group) -> None:
        # Neither these works nor the arrays are kept.
        for _ in range(20):
            group.all_reduce(np.ones(50_000), blocking=False)
        group.send(bytes_of(3), 1 - group.rank, blocking=False)
        into = group.recv(np.empty(LONG, np.uint8), 1 - group.rank)
        assert (into == 3).all()

    run(2, body)
