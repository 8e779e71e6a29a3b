"""A stand-in for a fabric group whose ranks are threads of one process: quick, and exact in the same rank order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class Shared:
    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Any] = [None] * size
        self.mail: dict[tuple[int, int], list[torch.Tensor]] = {}
        self.arrived = threading.Condition()


class ThreadGroup:
    def __init__(self, rank: int, shared: Shared) -> None:
        self.rank, self.size, self.shared = rank, shared.size, shared

    def _exchange(self, value: Any) -> list[Any]:
        self.shared.slots[self.rank] = value
        self.shared.barrier.wait()
        values = list(self.shared.slots)
        self.shared.barrier.wait()
        return values

    def all_reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        assert op == "sum"
        values = self._exchange(x.clone())
        total = values[0].float() if x.is_floating_point() else values[0].clone()
        for value in values[1:]:
            total = total + value.view(total.shape)  # as in the fabric only the number of elements must be equal
        return x.copy_(total.view(x.shape))

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        joined = torch.cat(self._exchange(x.clone()))
        return joined if out is None else out.copy_(joined)

    def gather(self, x: torch.Tensor, root: int, out: torch.Tensor | None = None) -> torch.Tensor | None:
        joined = torch.cat(self._exchange(x.clone()))
        return None if self.rank != root else joined if out is None else out.copy_(joined)

    def send(self, x: torch.Tensor, dst: int) -> None:
        with self.shared.arrived:
            self.shared.mail.setdefault((self.rank, dst), []).append(x.clone())
            self.shared.arrived.notify_all()

    def recv(self, x: torch.Tensor, src: int) -> torch.Tensor:
        key = (src, self.rank)
        with self.shared.arrived:
            assert self.shared.arrived.wait_for(lambda: self.shared.mail.get(key), timeout=60)
            return x.copy_(self.shared.mail[key].pop(0))


def run_ranks(size: int, body: Callable[[ThreadGroup], Any]) -> list[Any]:
    """Run ``body`` once per rank, in a thread each; their results in rank order. The first failure is raised."""
    shared = Shared(size)

    def guarded(rank: int) -> Any:
        try:
            return body(ThreadGroup(rank, shared))
        except BaseException:
            shared.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(size)]
        errors = [future.exception() for future in futures]
        first = [e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)] or [e for e in errors if e]
        if first:
            raise first[0]
        return [future.result() for future in futures]
