"""Checks, run by every rank, of the collectives of torch.distributed. Every function runs on all ranks at once."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.distributed as dist
import torch_names
from torch import Tensor
from torch.distributed import ReduceOp
from torch.testing import assert_close

from ferrule.errors import FabricError

SUM, AVG, PRODUCT, MIN, MAX = ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX

REALS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def _values(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> Tensor:
    """Small numbers, all different, and so that sums of a few are exact in every type."""
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return (torch.arange(count) % (rank + 2) == 0).view(shape)
    if dtype.is_complex:
        return torch.complex(_values(rank, torch.float32, shape), -_values(rank + 1, torch.float32, shape)).to(dtype)
    return ((torch.arange(count) + rank) % 4 + 1).view(shape).to(dtype)


def _reduced(op: ReduceOp.RedOpType, tensors: list[Tensor]) -> Tensor:
    """Expected result of the reduction, worked out in a type that holds it."""
    dtype = tensors[0].dtype
    if dtype.is_complex:
        return torch.view_as_complex(_reduced(op, [torch.view_as_real(t) for t in tensors]))
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    stack = torch.stack([t.to(wide) for t in tensors])
    if op == SUM:
        result = stack.sum(0)
    elif op == AVG:
        result = stack.sum(0) / len(tensors)
    elif op == PRODUCT:
        result = stack.prod(0)
    else:
        result = stack.amin(0) if op == MIN else stack.amax(0)
    return result.to(dtype)


def all_reduce_types(rank: int, size: int) -> None:
    for dtype in [*REALS, *INTEGERS, *FLOAT8, torch.complex64, torch.complex128]:
        for op in [SUM, AVG, PRODUCT, MIN, MAX]:
            if dtype.is_complex and op not in (SUM, AVG):
                continue
            x = _values(rank, dtype)
            dist.all_reduce(x, op)
            expected = _reduced(op, [_values(r, dtype) for r in range(size)])
            assert torch.equal(x.to(torch.complex128), expected.to(torch.complex128)), (dtype, op)


def all_reduce_bool(rank: int, size: int) -> None:
    inputs = [_values(r, torch.bool) for r in range(size)]
    for op, combine in [(SUM, operator.or_), (MAX, operator.or_), (PRODUCT, operator.and_), (MIN, operator.and_)]:
        x = inputs[rank].clone()
        dist.all_reduce(x, op)
        assert_close(x, functools.reduce(combine, inputs))


def all_reduce_bits(rank: int, size: int) -> None:
    for dtype in [torch.int32, torch.uint8, torch.bool]:
        inputs = [_values(r, dtype) for r in range(size)]
        bitwise = [(ReduceOp.BAND, operator.and_), (ReduceOp.BOR, operator.or_), (ReduceOp.BXOR, operator.xor)]
        for op, combine in bitwise:
            x = inputs[rank].clone()
            dist.all_reduce(x, op)
            assert_close(x, functools.reduce(combine, inputs))
            x = inputs[rank].clone()
            dist.reduce(x, 0, op)
            assert_close(x, functools.reduce(combine, inputs) if rank == 0 else inputs[rank])


def all_reduce_scaled(rank: int, size: int) -> None:
    premul = dist._make_nccl_premul_sum(0.5)
    for dtype in REALS:
        x = _values(rank, dtype)
        dist.all_reduce(x, premul)
        assert_close(x, _reduced(SUM, [_values(r, dtype) * 0.5 for r in range(size)]))
    out, x = torch.empty(2), torch.ones(2 * size)
    torch_names.reduce_scatter_single(out, x, premul)
    assert_close(out, torch.full((2,), size / 2))
    assert_close(x, torch.ones(2 * size))


def all_reduce_layouts(rank: int, size: int) -> None:
    total = sum(range(1, size + 1))
    base = torch.zeros(4, 6)
    x = base.t()[1:3]
    x.fill_(rank + 1)
    dist.all_reduce(x)
    assert_close(x, torch.full_like(x, total))
    assert base.sum() == total * x.numel()
    picture = torch.full((2, 3, 4, 4), rank + 1.0).to(memory_format=torch.channels_last)
    dist.all_reduce(picture)
    assert_close(picture, torch.full_like(picture, total))
    for shape in [(), (0,), (1,), (3, 0, 2)]:
        x = torch.full(shape, rank + 1.0)
        dist.all_reduce(x)
        assert_close(x, torch.full(shape, float(total)))
    weight = torch.nn.Parameter(torch.full((3,), rank + 1.0))
    dist.all_reduce(weight.data)
    dist.all_reduce(weight)
    assert_close(weight.data, torch.full((3,), float(total * size)))
    gap = torch.nn.Parameter(torch.full((3, 2), 1.0).t())
    dist.all_reduce(gap)
    assert_close(gap.data, torch.full((2, 3), float(size)))


def all_reduce_large(rank: int, size: int) -> None:
    x = torch.arange(1 << 20, dtype=torch.float32) + rank
    dist.all_reduce(x)
    assert_close(x, size * torch.arange(1 << 20, dtype=torch.float32) + sum(range(size)))


def refusals(rank: int, size: int) -> None:
    """A call that cannot be done raises on every rank, and disturbs nothing."""
    with pytest.raises(TypeError, match="bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), AVG)
    with pytest.raises(TypeError, match="integers"):
        dist.all_reduce(torch.ones(3), ReduceOp.BAND)
    with pytest.raises(TypeError, match="all_reduce"):
        torch_names.reduce_scatter_single(
            torch.ones(1, dtype=torch.int32), torch.ones(size, dtype=torch.int32), ReduceOp.BOR
        )
    with pytest.raises(TypeError, match="dense"):
        dist.all_reduce(torch.ones(3).to_sparse())
    with pytest.raises(TypeError, match="host memory"):
        dist.broadcast(torch.ones(3, device="meta"), 0)
    with pytest.raises(ValueError, match="one per rank"):
        dist.all_gather([torch.ones(1)] * (size + 1), torch.ones(1))
    with pytest.raises(ValueError, match="times the output"):
        torch_names.reduce_scatter_single(torch.ones(2), torch.ones(size))
    with pytest.raises(ValueError, match="divide"):
        dist.all_to_all_single(torch.ones(size), torch.ones(size), [size + 1] * size, [1] * size)
    all_reduce_large(rank, size)


def broadcast(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.float8_e5m2, torch.complex64, torch.bool]:
        for root in range(size):
            x = _values(rank, dtype)
            dist.broadcast(x, root)
            assert torch.equal(x.view(torch.uint8), _values(root, dtype).view(torch.uint8))
    x = _values(rank, torch.float32).t()
    dist.broadcast(x, size - 1)
    assert_close(x, _values(size - 1, torch.float32).t())


def reduce(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.complex64]:
        for root in range(size):
            x = _values(rank, dtype).t()
            dist.reduce(x, root)
            expected = _reduced(SUM, [_values(r, dtype) for r in range(size)]) if rank == root else _values(rank, dtype)
            assert_close(x, expected.t())


def all_gather(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.complex64, torch.bool]:
        for outs in ([torch.empty(3, 5, dtype=dtype) for _ in range(size)], list(torch.empty(size, 3, 5, dtype=dtype))):
            dist.all_gather(outs, _values(rank, dtype))
            assert_close(outs, [_values(r, dtype) for r in range(size)])
    outs = [torch.empty(5, 3).t() for _ in range(size)]
    dist.all_gather(outs, _values(rank, torch.float32).t().contiguous().t())
    assert_close(outs, [_values(r, torch.float32) for r in range(size)])


def all_gather_uneven(rank: int, size: int) -> None:
    outs = [torch.empty(2 * r, 3) for r in range(size)]
    dist.all_gather(outs, torch.full((2 * rank, 3), float(rank)))
    assert_close(outs, [torch.full((2 * r, 3), float(r)) for r in range(size)])


def all_gather_single(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.float8_e4m3fn, torch.complex64]:
        for shape in [(size * 3, 5), (size, 3, 5), (size * 15,)]:
            out = torch.empty(shape, dtype=dtype)
            torch_names.all_gather_single(out, _values(rank, dtype))
            expected = torch.stack([_values(r, dtype) for r in range(size)]).view(shape)
            assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))
    out = torch.empty(5, size * 3).t()
    torch_names.all_gather_single(out, _values(rank, torch.float32))
    assert_close(out, torch.cat([_values(r, torch.float32) for r in range(size)]))


def reduce_scatter(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.bfloat16]:
        for op in [SUM, AVG, MAX]:
            inputs = [[_values(r + part, dtype) for part in range(size)] for r in range(size)]
            expected = _reduced(op, [row[rank] for row in inputs])
            out = torch.empty(3, 5, dtype=dtype)
            dist.reduce_scatter(out, inputs[rank], op)
            assert_close(out, expected)
            out = torch.empty(5, 3, dtype=dtype).t()
            torch_names.reduce_scatter_single(out, torch.stack(inputs[rank]), op)
            assert_close(out, expected)


def reduce_scatter_uneven(rank: int, size: int) -> None:
    out = torch.empty(rank + 1, 2)
    dist.reduce_scatter(out, [torch.full((part + 1, 2), float(part)) for part in range(size)])
    assert_close(out, torch.full((rank + 1, 2), float(rank * size)))


def gather_and_scatter(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16]:
        for root in range(size):
            outs = [torch.empty(3, 5, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(_values(rank, dtype), outs, root)
            if outs is not None:
                assert_close(outs, [_values(r, dtype) for r in range(size)])
            out = torch.empty(5, 3, dtype=dtype).t()
            dist.scatter(out, [_values(r, dtype) for r in range(size)] if rank == root else None, root)
            assert_close(out, _values(rank, dtype))


def all_to_all(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.complex64]:
        outs = [torch.empty(rank + 1, 2, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outs, [torch.full((r + 1, 2), 10 * rank + r, dtype=dtype) for r in range(size)])
        assert_close(outs, [torch.full((rank + 1, 2), 10 * r + rank, dtype=dtype) for r in range(size)])


def all_to_all_single(rank: int, size: int) -> None:
    for dtype in [torch.float32, torch.int16, torch.complex64]:
        out = torch.empty(size, 2, dtype=dtype)
        dist.all_to_all_single(out, torch.arange(2 * size).view(size, 2).to(dtype) + 100 * rank)
        expected = [torch.tensor([2 * rank, 2 * rank + 1]) + 100 * r for r in range(size)]
        assert_close(out, torch.stack(expected).to(dtype))
        # Ranks need not agree on how they hold the same numbers, nor on whether they spell out equal shares.
        rows = torch.arange(4 * size).view(2 * size, 2).to(dtype)
        equal = [2] * size if rank == 0 else None
        out = torch.empty(2 * size, 2, dtype=dtype)
        dist.all_to_all_single(out, rows.t().contiguous().t() if rank == 1 else rows, equal, equal)
        assert_close(out, rows[2 * rank : 2 * rank + 2].repeat(size, 1))
        # Rank r sends r + s rows to rank s.
        counts = [rank + r for r in range(size)]
        out = torch.empty(sum(counts), 3, dtype=dtype)
        dist.all_to_all_single(out, torch.full((sum(counts), 3), rank, dtype=dtype), counts, counts)
        assert_close(out, torch.cat([torch.full((rank + r, 3), r, dtype=dtype) for r in range(size)]))


def send_and_recv(rank: int, size: int) -> None:
    following, previous = (rank + 1) % size, (rank - 1) % size
    for dtype in [torch.float32, torch.int16, torch.complex64]:
        for tag in [0, 7]:
            out = torch.empty(5, 3, dtype=dtype).t()
            if rank == 0:
                dist.send(_values(rank, dtype).t().contiguous().t(), following, tag=tag)
                assert dist.recv(out, previous, tag=tag) == previous
            else:
                assert dist.recv(out, previous, tag=tag) == previous
                dist.send(_values(rank, dtype), following, tag=tag)
            assert_close(out, _values(previous, dtype))


def recv_from_any(rank: int, size: int) -> None:
    if rank:
        dist.send(torch.full((5,), float(rank)), 0)
    else:
        seen = []
        for _ in range(size - 1):
            x = torch.empty(5, 2)[:, 0]  # with gaps
            seen.append(dist.recv(x))
            assert_close(x, torch.full((5,), float(seen[-1])))
        assert sorted(seen) == list(range(1, size))
        if size > 2:
            with pytest.raises(FabricError, match="give src"):
                dist.recv(torch.empty(1), tag=3)
    dist.barrier()


def receive_before_send(rank: int, size: int) -> None:
    """In which order sends and receives are started must not matter, not even for messages beyond any buffer."""
    for count in [1, 1 << 20]:
        outs = [torch.empty(count) for _ in range(size)]
        others = [other for other in range(size) if other != rank]
        works = [dist.irecv(outs[other], other) for other in others]
        works += [dist.isend(torch.full((count,), float(rank)), other) for other in reversed(others)]
        for work in reversed(works):
            work.wait()
        assert all(bool((outs[other] == other).all()) for other in others)


def batches_of_messages(rank: int, size: int) -> None:
    following, previous = (rank + 1) % size, (rank - 1) % size
    out = torch.empty(4)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, out, previous),
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), following),
        ]
    )
    for work in works:
        work.wait()
    assert_close(out, torch.full((4,), float(previous)))


def barriers(rank: int, size: int) -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.monitored_barrier()
