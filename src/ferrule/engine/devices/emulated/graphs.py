"""Graphs of the emulated accelerator: the launches that were captured, with the memory that they read and write.

As harsh as CUDA's, or harsher: waits, reads and copies from pageable memory are refused while work is captured; memory
that was made in a capture is poison at the start of each replay; and a replay that reads memory which was given back
since raises, where hardware would read whatever is there now. So does a launch whose graph is dropped before it ran.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from ferrule.engine.devices.emulated.machine import Machine, poison
from ferrule.engine.devices.graphs import Graph


class EmulatedGraph:
    """`Graph`, and while it is captured where a `Machine` puts what it is given. ``made``: memory of the pool."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._begun = machine, machine.counts
        self._works: list[Callable[[], object]] = []
        self._made: list[Tensor] = []
        self._read: dict[int, weakref.ref[Any]] = {}
        self._refused = ""
        self._copies = (0, 0)

    def add(self, work: Callable[[], object]) -> None:
        self._works.append(work)

    def refuse(self, why: str) -> None:
        """Raise, as CUDA does: the capture is spoilt."""
        self._refused = self._refused or why
        raise torch.AcceleratorError(
            f"emulated:{self._machine.index}: operation not permitted when stream is capturing: {why}"
        )

    def makes(self, cells: Tensor) -> None:
        """Memory of the pool."""
        self._made.append(cells)

    def reads(self, whole: Any) -> None:
        """A tensor of memory that was there before any capture."""
        self._read.setdefault(id(whole), weakref.ref(whole))

    def close(self) -> None:
        _, to_device, to_host = self._machine.counts
        self._copies = (to_device - self._begun[1], to_host - self._begun[2])
        self._machine.counts = self._begun
        if self._refused:
            raise torch.AcceleratorError(
                f"emulated:{self._machine.index}: operation failed due to a previous error during capture: "
                f"{self._refused}"
            )

    def replay(self) -> None:
        self._machine.check()
        if self._machine.capturing is not None:
            self._machine.capturing.refuse("a replay of another graph")
        if any(each() is None for each in self._read.values()):
            raise RuntimeError("a graph reads memory that was given back after it was captured")
        launches, to_device, to_host = self._machine.counts
        self._machine.counts = (launches + 1, to_device + self._copies[0], to_host + self._copies[1])
        run = weakref.WeakMethod(self._run)
        self._machine.start(lambda: _launched(run))

    def _run(self) -> None:
        for cells in self._made:
            poison(cells)
        for work in self._works:
            work()


def _launched(run: weakref.WeakMethod[Callable[[], None]]) -> None:
    there = run()
    if there is None:
        raise RuntimeError("a graph was dropped while a launch of it was waiting")
    there()


class EmulatedGraphs:
    """`Graphs`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._stream = machine.timeline.stream()
        self._open: EmulatedGraph | None = None

    @contextmanager
    def beside(self) -> Iterator[None]:
        timeline = self._machine.timeline
        before = timeline.current
        self._stream.after(before.record())
        timeline.current = self._stream
        try:
            yield
        finally:
            timeline.current = before
        before.after(self._stream.record())

    def settle(self) -> None:
        self._machine.check()
        self._machine.timeline.wait_for_all()

    def begin(self) -> None:
        self._machine.check()
        if self._machine.timeline.current is not self._stream or self._machine.capturing is not None:
            raise RuntimeError("work is captured on a stream of its own, one graph at a time")
        self._open = self._machine.capturing = EmulatedGraph(self._machine)

    def end(self) -> Graph:
        graph, self._open = self._open, None
        assert graph is not None
        self._machine.capturing = None
        graph.close()
        self._machine.check()
        return graph

    def abandon(self) -> None:
        if self._open is not None:
            with suppress(torch.AcceleratorError):  # that what was captured is not valid, which is known
                self.end()
        self._machine.check()
