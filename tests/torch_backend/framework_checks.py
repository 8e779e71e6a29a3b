"""Checks, run by every rank, of what torch builds on collectives: functional ones, compile, DTensor, DDP."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_names
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

_BACKEND = os.environ.get("COMPILE_BACKEND", "aot_eager")


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world


def _compare(found: Tensor, expected: Tensor) -> None:
    """Also where it is still under way, on a device whose tensors are of a type of their own."""
    assert_close(found.cpu(), expected.cpu())


def functional_collectives(rank: int, size: int) -> None:
    world = _world()
    x = torch.full((2 * size, 3), float(rank))
    total = sum(range(size))
    _compare(functional.all_reduce(x, "sum", world), torch.full_like(x, total))
    _compare(functional.all_reduce(x, "avg", world), torch.full_like(x, total / size))
    _compare(torch_names.functional_gather(x, 0, world)[:: 2 * size, 0], torch.arange(float(size)))
    _compare(torch_names.functional_scatter(x, "sum", 0, world), torch.full((2, 3), float(total)))
    _compare(functional.broadcast(x, size - 1, world), torch.full_like(x, size - 1))
    rows = functional.all_to_all_single(x, None, None, world)
    _compare(rows[::2, 0], torch.arange(float(size)))


def functional_lists(rank: int, size: int) -> None:
    world = _world()
    x = torch.full((2 * size, 3), float(rank))
    total = sum(range(size))
    one, two = functional.all_reduce_coalesced([x, x + 1], "sum", world)
    _compare(one[0, 0], torch.tensor(total * 1.0))
    _compare(two[0, 0], torch.tensor(total + size * 1.0))
    one, two = torch_names.functional_gather_list([x, x[:1]], world)
    _compare(one[:: 2 * size, 0], torch.arange(float(size)))
    _compare(two[:, 0], torch.arange(float(size)))
    one, two = torch_names.functional_scatter_list([x, 2 * x], "sum", [0, 0], world)
    _compare(one, torch.full((2, 3), float(total)))
    _compare(two, torch.full((2, 3), 2.0 * total))


def compiled(rank: int, size: int) -> None:
    """Both kinds of collectives inside one graph, without a break."""
    world = _world()

    @torch.compile(fullgraph=True, backend=_BACKEND)
    def functionally(x: Tensor) -> Tensor:
        y = functional.all_reduce(x * 2, "sum", world)
        return torch_names.functional_gather(y + 1, 0, world)

    @torch.compile(fullgraph=True, backend=_BACKEND)
    def in_place(x: Tensor) -> Tensor:
        x = x * 3
        dist.all_reduce(x)
        return x + 1

    for _ in range(2):
        assert_close(functionally(torch.ones(4)), torch.full((4 * size,), 2.0 * size + 1))
        assert_close(in_place(torch.ones(4)), torch.full((4,), 3.0 * size + 1))


def distributed_tensors(rank: int, size: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(8 * size, 12), torch.randn(12, 6 * size)
    for shape in [(size,), (1, size), (size, 1), *([(2, 2)] if size == 4 else [])]:
        mesh = init_device_mesh(torch.get_default_device().type, shape)
        along, whole = mesh.ndim - 1, [Replicate()] * mesh.ndim
        row, column = list(whole), list(whole)
        row[along], column[along] = Shard(0), Shard(1)
        product = distribute_tensor(a, mesh, column) @ distribute_tensor(b, mesh, row)
        assert_close(product.redistribute(mesh, whole).to_local(), a @ b)
        assert_close(distribute_tensor(a, mesh, row).full_tensor(), a)
        with pytest.raises(TypeError, match="to_local"):
            dist.all_reduce(distribute_tensor(a, mesh, row))
        turned = distribute_tensor(a, mesh, row).redistribute(mesh, column)
        assert_close(turned.full_tensor(), a)


def data_parallel(rank: int, size: int) -> None:
    """The gradients of a batch cut among the ranks are those of the whole batch."""
    torch.manual_seed(rank)  # DDP must spread the weights of rank 0
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    torch.manual_seed(0)
    single = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model.eval()
    single.eval()
    batch = torch.randn(4 * size, 6)
    for _ in range(2):
        model(batch[4 * rank : 4 * rank + 4]).square().mean().backward()
        single(batch).square().mean().backward()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)
