"""Processor time that a long wait costs, which other programs want."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from in_threads import on_all, thread_groups

from ferrule.errors import FabricTimeout
from ferrule.fabric import Group

YIELD_US = 20_000.0
"""As groups of processes have it."""


def test_a_long_wait_takes_next_to_no_processor_time() -> None:
    """It looks up ten times per second, and spins and yields only once, in the beginning."""

    def body(group: Group) -> float:
        if group.rank == 0:
            with pytest.raises(FabricTimeout):
                group.recv(np.empty(1), 1, timeout=1.0)
            return time.thread_time()
        return 0.0

    used, _ = on_all(thread_groups(2, yield_us=YIELD_US), body)
    assert used < 0.06


def test_waits_that_are_all_long_do_not_yield_for_long() -> None:
    """An idle model's ranks hear from each other once per second: the 20 ms of yielding would be 2 % of a core."""
    rounds, settled = 12, 8

    def body(group: Group) -> float:
        used = 0.0
        for number in range(rounds):
            if group.rank == 1:
                time.sleep(0.06)  # longer than the other yields
                group.send(np.ones(1), 0)
                continue
            before = time.thread_time()
            group.recv(np.empty(1), 1)
            if number >= settled:
                used += time.thread_time() - before
        return used

    used, _ = on_all(thread_groups(2, yield_us=YIELD_US), body)
    assert used < (rounds - settled) * 3e-3


def test_a_message_that_comes_soon_makes_waits_yield_again() -> None:
    """After long waits, one of 3 ms is slept through, and the next ones find their message while they yield."""
    enough = threading.Event()

    def body(group: Group) -> bool:
        for number in range(300):
            if group.rank == 1:
                time.sleep(0.06 if number < 6 else 3e-3)
                last = enough.is_set()
                group.send(np.full(1, last), 0)
                if last:
                    return True
                continue
            before, told = time.thread_time(), np.empty(1, bool)
            group.recv(told, 1)
            # Where others want the core, yielding gives it to them; so once in a while is enough.
            if number > 6 and time.thread_time() - before > 1.5e-3:
                enough.set()
            if told[0]:
                return True
        return False

    assert all(on_all(thread_groups(2, yield_us=YIELD_US), body))
