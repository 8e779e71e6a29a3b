"""Speed that a core keeps while all cores of this machine compute and wait for each other.

Cores share memory, caches, and in virtual machines often the execution units of one core; of several ranks that meet
after each part of a layer, all wait for the one that was slowest this time; and ranks that take turns on a core find
its caches cold. Processes of one thread do what decoding does (`ferrule.plan.device.contention_worker`): one alone,
one on each core, two on each.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from ferrule.errors import PlanError
from ferrule.process import usable_cores

ANSWER_SECONDS = 60.0
"""For a process that is to work for half a second; the first time it imports what it needs."""


class Kept(NamedTuple):
    """From 0 to 1, of its speed: while all cores compute; while two processes take turns on each, None where there are
    no more ranks than cores; and while processes on the other cores stay awake."""

    together: float
    in_turns: float | None = None
    awake: float = 1.0


ALL_KEPT = Kept(1.0)


class CoresTogether:
    """Measures it for so many ``ranks``, as often as asked: processes that wait in between."""

    def __init__(self, ranks: int, cores: int | None = None) -> None:
        self._cores = usable_cores() if cores is None else cores
        self._turns = 2 if ranks > self._cores else 1
        self._stack = ExitStack()
        self._workers: list[_Worker] = []

    def __enter__(self) -> CoresTogether:
        with ExitStack() as stack:
            if (count := self._cores * self._turns) > 1:
                self._workers = [stack.enter_context(_Worker(self._cores)) for _ in range(count)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self) -> Kept:
        """In one to two seconds. Raises `PlanError`."""
        if not self._workers:
            return ALL_KEPT
        first, others = self._workers[:1], self._workers[1 : self._cores]
        alone = _work(first)

        def part_of_alone(found: Sequence[float]) -> float:
            return min(1.0, statistics.geometric_mean(a / b for a, b in zip(alone[::2], found, strict=True)))

        together, awake = 1.0, 1.0
        if others:
            together = part_of_alone(_work([*first, *others])[1::2])
            awake = part_of_alone(_work(first, awake=others)[::2])
        in_turns = part_of_alone(_work(self._workers, turns=2)[1::2]) if self._turns > 1 else None
        return Kept(together, in_turns, awake)


def _work(workers: Sequence[_Worker], *, turns: int = 1, awake: Sequence[_Worker] = ()) -> list[float]:
    """Seconds of each kind of work, and of the slowest core, on average over the ``workers``; with ``turns`` these
    keep to one core. ``awake``: do nothing meanwhile."""
    start = time.time() + 0.02
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for place, worker in enumerate(workers):
        worker.tell(start, turns, [cpus[place % len(cpus)]] if cpus and turns > 1 else cpus)
    for worker in awake:
        worker.tell(start, 0, cpus)
    for worker in awake:
        worker.answer()
    return [statistics.mean(times) for times in zip(*(worker.answer() for worker in workers), strict=True)]


class _Worker:
    """On one of ``count`` cores."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> _Worker:
        # Not `process.start`: its streams are text, and it need not be tied, as it ends when its input does.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ferrule.plan.device.contention_worker", str(self._count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, start: float, turns: int, cpus: Sequence[int]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, (start, turns, *cpus))) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PlanError(f"a process that measures this machine's cores has ended: {error}") from error

    def answer(self) -> list[float]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise PlanError(f"a process that measures this machine's cores has said nothing for {ANSWER_SECONDS:g} s")
        line = self._process.stdout.readline()
        try:
            return [float(word) for word in line.split()] if line else self._ended()
        except ValueError as error:
            raise PlanError(f"a process that measures this machine's cores said {line!r}") from error

    def _ended(self) -> list[float]:
        raise PlanError("a process that measures this machine's cores has ended")
