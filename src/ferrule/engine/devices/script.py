"""Script of a step that is run again and again: graphs, and between them what the host does with ranks' results.

What lies between two collectives is one graph, the copies to and from pinned host memory included, and so one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ferrule.engine.devices.device import CopyingDevice
from ferrule.engine.devices.graphs import Graph, Graphs

Talk = Callable[[Tensor, Tensor | None], object]
"""What the host does, with the memory that has come from the device and that which goes back to it."""


class Script:
    """``refused``: why the step is not captured, once that is known."""

    def __init__(self, device: CopyingDevice, graphs: Graphs) -> None:
        self._device, self._graphs = device, graphs
        self._hosts: list[tuple[Tensor, Tensor | None]] = []
        """Pinned memory of each exchange: what comes from the device and what goes back."""
        self._parts: list[tuple[Graph, Callable[[], object] | None]] = []
        self._result: Tensor | None = None
        self._number = 0
        self._capturing = False
        self.refused = ""

    @property
    def launches(self) -> int:
        """Graphs of a run; 0 where it is not captured."""
        return len(self._parts)

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        """The result of ``step``, which starts its work; it holds until a graph of the same pool is launched. What the
        step reads and what changes with it lies in memory that stays, and its collectives come to `exchange`.

        The first run calls ``step`` and then captures it: in a capture no host says anything to another, so one that
        cannot capture does not hold up the others. It goes on to call ``step``, which does the same."""
        if self._result is not None:
            self._replay()
            return self._result
        self._number = 0
        with self._graphs.beside():
            found = step()
        if not self.refused:
            self._capture(step)
        return found

    def exchange(self, sent: Tensor, received: Tensor | None, talk: Talk) -> None:
        """Have the host ``talk`` about ``sent``, and bring what it has then to ``received``, which may be the same."""
        if self._number == len(self._hosts):
            out = self._device.pinned(tuple(sent.shape), sent.dtype)
            home = None if received is None else self._device.pinned(tuple(received.shape), received.dtype)
            self._hosts.append((out, out if received is sent else home))
        out, home = self._hosts[self._number]
        self._number += 1
        out.copy_(sent, non_blocking=True)
        if self._capturing:
            self._parts.append((self._graphs.end(), partial(talk, out, home)))
            self._graphs.begin()
        else:
            self._device.record().synchronize()
            talk(out, home)
        if received is not None and home is not None:
            received.copy_(home, non_blocking=True)

    def _capture(self, step: Callable[[], Tensor]) -> None:
        self._graphs.settle()
        self._number, self._capturing = 0, True
        with self._graphs.beside():
            try:
                self._graphs.begin()
                self._result = step()
                self._parts.append((self._graphs.end(), None))
            except RuntimeError as error:  # torch's, for all that cannot be captured, and for memory that ends
                self._graphs.abandon()  # raises where it is the device that is lost
                self.refused, self._result = f"{type(error).__name__}: {error}", None
                self._parts.clear()
            finally:
                self._capturing = False

    def _replay(self) -> None:
        for graph, talk in self._parts:
            graph.replay()
            if talk is not None:
                self._device.record().synchronize()
                talk()
