"""A rank of Ferrule's fabric, called from Python and natively."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import ferrule.fabric as fabric
from ferrule.bench.fabric.rank import FerruleOptions, Player, Task, time_calls
from ferrule.bench.fabric.rank_arrays import Arrays, zeros
from ferrule.config import check_transport
from ferrule.fabric.arrays import locate


@contextmanager
def open_player(rank: int, options: FerruleOptions) -> Iterator[FerrulePlayer]:
    groups: dict[str, fabric.Group] = {}
    with ExitStack() as stack:
        world = stack.enter_context(fabric.init(transport="tcp", timeout=options.timeout))
        for name in options.transports:
            member = world.split(0, rank, transport=check_transport(name, "transport"))
            assert member is not None  # every rank has the same color
            groups[name] = stack.enter_context(member)
        yield FerrulePlayer(groups, options.timeout)


class FerrulePlayer(Player):
    def __init__(self, groups: dict[str, fabric.Group], timeout: float) -> None:
        self._groups = groups
        self._timeout = timeout
        self._arrays = Arrays(next(iter(groups.values())).size, zeros)

    def rails(self) -> dict[str, int]:
        return {
            name: max(1, *(len(peer.rails) for peer in group.describe().peers)) for name, group in self._groups.items()
        }

    def play(self, task: Task) -> list[float]:
        group = self._groups[task.transport]
        source, target = self._arrays.pair(task)
        if task.impl == "ferrule":
            return time_calls(group_calls(group, task.op, source, target), task.samples)
        in_address, _, dtype = locate(source, writable=False)
        out_address, _, _ = locate(target, writable=True)
        return group._core.native.time(task.op, in_address, out_address, task.count, dtype, task.samples, self._timeout)


def group_calls(group: fabric.Group, op: str, source: Any, target: Any) -> list[Callable[[], Any]]:
    """The calls of one sample on this rank."""
    roots = range(group.size)
    match op:
        case "all_reduce":
            return [partial(group.all_reduce, source)]
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return [partial(getattr(group, op), source, out=target)]
        case "broadcast" | "reduce":
            return [partial(getattr(group, op), source, root) for root in roots]
        case "gather" | "scatter":
            return [partial(getattr(group, op), source, root, out=target) for root in roots]
        case "send_recv":
            peer = 1 - group.rank
            calls: list[Callable[[], Any]] = [partial(group.send, source, peer), partial(group.recv, source, peer)]
            return [calls, calls[::-1]][group.rank] if group.rank < 2 else []
        case "barrier":
            return [group.barrier]
    raise ValueError(f"there is no operation {op}")
