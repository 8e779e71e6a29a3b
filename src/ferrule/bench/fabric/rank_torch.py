"""A rank of `torch.distributed`, on Gloo or on Ferrule's backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ferrule.bench.fabric.rank import Player, Task, TorchOptions, time_calls
from ferrule.bench.fabric.rank_arrays import Arrays, zeros


@contextmanager
def open_player(rank: int, options: TorchOptions) -> Iterator[TorchPlayer]:
    torch.set_num_threads(1)
    backend, ranks = options.backend, options.ranks
    if backend == "ferrule":
        import ferrule.torch  # noqa: F401 - registers the backend
    elif backend == "nothing":
        dist.Backend.register_backend(backend, _Nothing.create, extended_api=True, devices=["cpu"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    timeout = timedelta(seconds=options.timeout)
    dist.init_process_group(
        backend, init_method=f"file://{options.store}", rank=rank, world_size=ranks, timeout=timeout
    )
    try:
        yield TorchPlayer(rank, ranks)
    finally:
        dist.destroy_process_group()


class _Nothing(dist.ProcessGroup):
    """Says that everything is done: what is left is what torch.distributed takes for itself."""

    @classmethod
    def create(cls, options: Any, _backend_options: object) -> _Nothing:
        return cls(options.group_rank, options.group_size)  # type: ignore[call-arg]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        return _DONE


class _Done(dist.Work):
    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


_DONE = _Done()


class TorchPlayer(Player):
    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._ranks = ranks
        self._arrays = Arrays(ranks, zeros)

    def play(self, task: Task) -> list[float]:
        source, target = self._arrays.pair(task)
        return time_calls(self._calls(task.op, source, target), task.samples)

    def _calls(self, op: str, x: Any, y: Any) -> list[Callable[[], Any]]:
        roots = range(self._ranks)
        match op:
            case "all_reduce":
                return [partial(dist.all_reduce, x)]
            case "all_gather":
                return [partial(dist.all_gather_into_tensor, y, x)]
            case "reduce_scatter":
                return [partial(dist.reduce_scatter_tensor, y, x)]
            case "all_to_all":
                return [partial(dist.all_to_all_single, y, x)]
            case "broadcast":
                return [partial(dist.broadcast, x, root) for root in roots]
            case "reduce":
                return [partial(dist.reduce, x, root) for root in roots]
            case "gather":
                parts = list(y.chunk(self._ranks))
                return [partial(dist.gather, x, parts if root == self._rank else None, root) for root in roots]
            case "scatter":
                parts = list(x.chunk(self._ranks))
                return [partial(dist.scatter, y, parts if root == self._rank else None, root) for root in roots]
            case "send_recv":
                peer = 1 - self._rank
                calls: list[Callable[[], Any]] = [partial(dist.send, x, peer), partial(dist.recv, x, peer)]
                return [calls, calls[::-1]][self._rank] if self._rank < 2 else []
            case "barrier":
                return [dist.barrier]
        raise ValueError(f"there is no operation {op}")
