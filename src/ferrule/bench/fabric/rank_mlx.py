"""A rank of MLX, on its ring or on Ferrule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from ferrule.bench.fabric.rank import MlxOptions, Player, Task, time_calls
from ferrule.bench.fabric.rank_arrays import Arrays


@contextmanager
def open_player(rank: int, options: MlxOptions) -> Iterator[MlxPlayer]:
    mx.set_default_device(mx.cpu)
    yield MlxPlayer(mx.distributed.init(strict=True, backend=options.backend))


class MlxPlayer(Player):
    def __init__(self, group: Any) -> None:
        self._group = group
        self._arrays = Arrays(group.size(), _zeros)
        self._decoders: dict[int, Callable[[], float]] = {}

    def play(self, task: Task) -> list[float]:
        """Also ``evaluate``, an evaluation without the others, and ``decode``, a token of mlx-lm's Llama of ``count``
        parameters."""
        if task.op == "decode":
            if task.count not in self._decoders:
                from ferrule.bench.fabric.rank_mlx_lm import new_decoder

                self._decoders[task.count] = new_decoder(task.count, self._group)
            return [self._decoders[task.count]() for _ in range(task.samples)]
        if task.op == "evaluate":
            x = _zeros(task.count, task.dtype)
            return time_calls([lambda: mx.eval(x + 1)], task.samples)
        source, _ = self._arrays.pair(task)
        return time_calls(self._calls(task.op, source), task.samples)

    def _calls(self, op: str, x: Any) -> list[Callable[[], Any]]:
        group, rank = self._group, self._group.rank()
        match op:
            case "all_reduce":
                return [lambda: mx.eval(mx.distributed.all_sum(x, group=group))]
            case "all_gather":
                return [lambda: mx.eval(mx.distributed.all_gather(x, group=group))]
            case "send_recv" if rank < 2:
                calls: list[Callable[[], Any]] = [
                    lambda: mx.eval(mx.distributed.send(x, 1 - rank, group=group)),
                    lambda: mx.eval(mx.distributed.recv_like(x, 1 - rank, group=group)),
                ]
                return [calls, calls[::-1]][rank]
            case "send_recv":
                return []
        raise ValueError(f"MLX has no {op}")


def _zeros(count: int, dtype: str) -> Any:
    array = mx.zeros((count,), dtype=mx.bool_ if dtype == "bool" else getattr(mx, dtype))
    mx.eval(array)
    return array
