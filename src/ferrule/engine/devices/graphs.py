"""Graphs: work of a device that is captured once and then launched as one, without the code that started it.

While work is captured nothing runs, and what needs the device's answer is refused: waits, reads by the host, copies
from pageable memory. A replay reads and writes the memory that was captured, at its addresses: so what goes in and what
stays must lie in memory that outlives the graph, and what it made holds until another graph of the same pool runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

import torch


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Launch it on the current stream."""
        ...


class Graphs(Protocol):
    """Captures of one device, whose graphs share a pool of memory: they must not run at once, nor be replayed in an
    order that reads what another one has written over."""

    def beside(self) -> AbstractContextManager[None]:
        """Give work to a stream of its own meanwhile, after all that was started before and before all that is started
        later. Captures, and the run before one that lets libraries allocate what they need, are to be made there."""
        ...

    def settle(self) -> None:
        """Wait for all work, and give back memory that is kept for later: a capture can use neither."""
        ...

    def begin(self) -> None:
        """From now on work is captured, not run."""
        ...

    def end(self) -> Graph:
        """What was captured. Raises what the device raises where some of it was refused."""
        ...

    def abandon(self) -> None:
        """End a capture of which nothing is wanted, if there is one. Raises what the device raises where it is lost."""
        ...


class TorchGraphs:
    """`Graphs` by CUDA's graphs, and HIP's with a torch for ROCm."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._open: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def beside(self) -> Iterator[None]:
        main = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            yield
        main.wait_stream(self._stream)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def begin(self) -> None:
        self._open = torch.cuda.CUDAGraph()
        # What other threads ask of the device meanwhile, such as events of its pinned memory, spoils nothing here.
        self._open.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Graph:
        graph, self._open = self._open, None
        assert graph is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a graph without work: a rank may have nothing to do after a gather
            graph.capture_end()
        return graph

    def abandon(self) -> None:
        if self._open is not None:
            with suppress(RuntimeError):  # that what was captured is not valid, which is known
                self.end()
        torch.cuda.synchronize(self._device)
