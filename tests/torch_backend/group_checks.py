"""Checks, run by every rank, of groups, work handles, objects and coalescing on the backend ferrule."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_names
from torch._C import _distributed_c10d as c10d
from torch.testing import assert_close
from torch_rank import TIMEOUT

from ferrule.errors import FabricTimeout


def identity(rank: int, size: int) -> None:
    assert dist.get_backend() == "ferrule"
    world = dist.group.WORLD
    assert world is not None
    assert (world.rank(), world.size(), world.name()) == (rank, size, "ferrule")
    assert world.fabric._core.timeout == TIMEOUT.total_seconds()
    world.get_group_store().set(f"rank {rank}", "here")
    assert [peer.rank for peer in world.fabric.describe().peers] == list(range(size))


def works(rank: int, size: int) -> None:
    x, y = torch.ones(4), torch.ones(3, 2).t()
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(y, async_op=True)
    assert second.wait()
    assert first.is_completed()
    assert first.wait()
    assert first.is_success()
    assert first.exception() is None
    assert first.result()[0] is x
    assert_close((x, y), (torch.full((4,), float(size)), torch.full((2, 3), float(size))))
    outs = [torch.empty(2) for _ in range(size)]
    dist.all_gather(outs, torch.full((2,), float(rank)), async_op=True).wait()
    assert_close(outs, [torch.full((2,), float(r)) for r in range(size)])


def futures(rank: int, size: int) -> None:
    x = torch.ones(4, 2).t()
    doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert_close(doubled.wait(), torch.full((2, 4), 2.0 * size))


def overlap(rank: int, size: int) -> None:
    """A collective that was started must not stand in the way of a message that its peers need first."""
    x, y = torch.ones(4), torch.empty(4)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        for other in range(1, size):
            dist.send(torch.full((4,), 7.0), other)
        work.wait()
    else:
        dist.recv(y, 0)
        dist.all_reduce(x)
        assert_close(y, torch.full((4,), 7.0))
    assert_close(x, torch.full((4,), float(size)))


def coalescing(rank: int, size: int) -> None:
    xs = [torch.full((n,), rank + 1.0) for n in (1, 5, 70_000)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    total = float(sum(range(1, size + 1)))
    assert_close(xs, [torch.full_like(x, total) for x in xs])

    outs = [torch.empty(size * n) for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            torch_names.all_gather_single(out, torch.full((len(out) // size,), float(rank)))
    manager.wait()
    for out in outs:
        assert_close(out.view(size, -1)[:, 0], torch.arange(float(size)))

    parts = [torch.empty(n) for n in (2, 3)]
    with dist._coalescing_manager():
        for part in parts:
            torch_names.reduce_scatter_single(part, torch.ones(size * len(part)))
    assert_close(parts, [torch.full_like(part, float(size)) for part in parts])

    x, y = torch.full((2,), float(rank)), torch.ones(2)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(x, size - 1, async_op=True)
        dist.reduce(y, 0, async_op=True)
    manager.wait()
    assert_close(x, torch.full((2,), size - 1.0))
    assert_close(y, torch.full((2,), float(size) if rank == 0 else 1.0))


def objects(rank: int, size: int) -> None:
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "pad": "x" * rank})
    assert everything == [{"rank": r, "pad": "x" * r} for r in range(size)]
    words = ["one", 2, None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(words, 0)
    assert words == ["one", 2, None]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert gathered == (list(range(size)) if rank == 0 else None)
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list([{"a": 1}], 1)
    elif rank == 1:
        dist.recv_object_list(mine, 0)
        assert mine == [{"a": 1}]


def subgroups(rank: int, size: int) -> None:
    alone = [dist.new_group([r]) for r in range(size)]
    back = dist.new_group(list(reversed(range(size))))
    x = torch.full((2,), rank + 1.0)
    dist.all_reduce(x, group=alone[rank])
    assert_close(x, torch.full((2,), rank + 1.0))
    dist.all_reduce(x, group=back)
    assert_close(x, torch.full((2,), float(sum(range(1, size + 1)))))
    dist.broadcast(x, 0, group=back)
    dist.destroy_process_group(back)
    later = dist.new_group(list(range(size)), backend="cpu:ferrule")
    dist.barrier(later)
    dist.destroy_process_group(later)


def beside_gloo(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    x = torch.ones(2)
    dist.all_reduce(x, group=gloo)
    dist.all_reduce(x)
    assert_close(x, torch.full((2,), float(size * size)))
    dist.monitored_barrier(gloo)
    dist.destroy_process_group(gloo)


def older_names(rank: int, size: int) -> None:
    """torch before 2.13 calls these."""
    group = dist.group.WORLD
    assert group is not None
    out = torch.empty(size * 2)
    group._allgather_base(out, torch.full((2,), float(rank)), c10d.AllgatherOptions()).wait()
    assert_close(out[::2], torch.arange(float(size)))
    group.allgather_into_tensor_coalesced([out], [torch.zeros(2)]).wait()
    assert out.sum() == 0
    part = torch.empty(2)
    group._reduce_scatter_base(part, torch.ones(2 * size), c10d.ReduceScatterOptions()).wait()
    group.reduce_scatter_tensor_coalesced([part], [torch.ones(2 * size)]).wait()
    assert_close(part, torch.full((2,), float(size)))
    group.alltoall_base(out, torch.arange(2.0 * size), [], []).wait()
    assert_close(out, torch.tensor([2.0 * rank, 2.0 * rank + 1] * size))
    rows = [[torch.empty(1), torch.empty(2)] for _ in range(size)]
    group.allgather_coalesced(rows, [torch.tensor([1.0 * rank]), torch.tensor([2.0 * rank] * 2)]).wait()
    assert_close(rows, [[torch.tensor([1.0 * r]), torch.tensor([2.0 * r] * 2)] for r in range(size)])


def refused_tags(rank: int, size: int) -> None:
    """In a group of its own, because the first mismatch is the end of any order."""
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(1), 1, group, tag=1)
    elif rank == 1:
        with pytest.raises(Exception, match="tag 2 from rank 0, which sent tag 1"):
            dist.recv(torch.ones(1), 0, group, tag=2)


def barrier_out_of_time(rank: int, size: int) -> None:
    """In the words by which torch's own tools and tests know it."""
    group = dist.new_group([0, 1])
    if rank == 0:
        with pytest.raises(FabricTimeout, match=r"Timed out on rank 0: barrier\(\) .* waiting for rank 1"):
            group.monitored_barrier(timedelta(seconds=0.2))
    dist.barrier()
