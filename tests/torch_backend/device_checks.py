"""Checks, run by every rank, of tensors of an accelerator of its own, the emulated one, on the backend ferrule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch_names
from torch import Tensor
from torch.testing import assert_close

from ferrule.engine.devices.emulated import module
from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.emulated.machine import machine
from ferrule.staging import PIECE_BYTES

_ONE = EmulatedDevice().torch_device
_LARGE = 3 * PIECE_BYTES // 4 + 5
"""Elements of float32: four pieces."""


def _on_device(values: Tensor) -> Tensor:
    return values.to(_ONE)


def _waits(call: Callable[[], object]) -> int:
    """Number of times that the host waits for the device in ``call``."""
    one = machine(0)
    before, one.timeline.waits = sum(one.waits.values()), 0
    call()
    assert sum(one.waits.values()) == before, "for events only"
    return one.timeline.waits


def one_wait_for_each_collective(rank: int, size: int) -> None:
    x, many = _on_device(torch.ones(5)), _on_device(torch.ones(size, 5))
    rows = [row.clone() for row in many]
    assert _waits(lambda: dist.all_reduce(x)) == 1
    assert _waits(lambda: torch_names.all_gather_single(many, x)) == 1
    assert _waits(lambda: torch_names.reduce_scatter_single(x, many)) == 1
    assert _waits(lambda: dist.all_gather(rows, x)) == 1
    assert _waits(lambda: dist.all_to_all(rows, list(many))) == 1, "not one for each tensor"
    assert _waits(lambda: dist.broadcast(x, 0)) == (rank == 0)
    assert _waits(lambda: dist.reduce(x, 0)) == 1
    assert _waits(dist.barrier) == 0
    assert _waits(lambda: dist.all_reduce(x, async_op=True).wait()) == 1
    assert_close(x.cpu(), torch.full((5,), float(x[0])))


def large_ones_in_pieces(rank: int, size: int) -> None:
    """Each piece is waited for by itself, and the result is that of the whole; also with gaps, and not waited for."""
    group = dist.new_group()  # one that knows that there is an accelerator everywhere
    values = torch.arange(_LARGE, dtype=torch.float32) % 1000
    expected = size * values + sum(range(size))
    x = _on_device(values + rank)
    assert _waits(lambda: dist.all_reduce(x, group=group)) == 4
    assert_close(x.cpu(), expected)
    x = _on_device(values + rank)
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work.get_future().wait()[0] is x
    assert_close(x.cpu(), expected)
    turned = _on_device(torch.stack([values + rank, -values])).t()
    works = [dist.all_reduce(turned, group=group, async_op=True), dist.broadcast(x, size - 1, group, async_op=True)]
    for work in works:
        work.wait()
    assert_close(turned.cpu(), torch.stack([expected, -size * values], 1))
    sent = _on_device(values + rank)
    dist.broadcast(sent, size - 1, group)
    assert_close(sent.cpu(), values + size - 1)
    dist.reduce(sent, 1, group=group)
    assert_close(sent.cpu(), (size if rank == 1 else 1) * (values + size - 1))
    together, share = _on_device(torch.empty(size * _LARGE)), _on_device(torch.empty(_LARGE))
    torch_names.all_gather_single(together, _on_device(values + rank), group=group)
    assert_close(together.cpu(), torch.cat([values + r for r in range(size)]))
    torch_names.reduce_scatter_single(share, together, group=group)
    assert_close(share.cpu(), size * (values + rank))


def in_place(rank: int, size: int) -> None:
    """On a device whose memory the host sees: no copies, one wait also before the host writes, and the same results."""
    one, group = machine(0), dist.new_group()
    x, many = _on_device(torch.full((5,), 1.0 + rank)) * 2, _on_device(torch.zeros(size, 5)) + 1
    rows = [row.clone() for row in many]
    copies = (one.to_host, one.to_device)
    assert _waits(lambda: dist.all_reduce(x)) == 1
    assert _waits(lambda: torch_names.all_gather_single(many, x)) == 1
    assert _waits(lambda: dist.all_gather(rows, x)) == 1
    assert _waits(lambda: dist.broadcast(x, 0)) == 1
    works = [dist.all_reduce(many.t(), async_op=True), dist.all_reduce(rows[0], async_op=True)]
    for work in works:
        work.wait()
    large = _on_device(torch.zeros(_LARGE)) + rank
    copies = (copies[0], copies[1] + 1)
    dist.all_reduce(large, group=group)
    assert (one.to_host, one.to_device) == copies
    total = float(size * (size + 1))
    assert_close(x.cpu(), torch.full((5,), total))
    assert_close(many.cpu(), torch.full((size, 5), size * total))
    assert_close(rows[0].cpu(), torch.full((5,), size * total))
    assert_close(large.cpu(), torch.full((_LARGE,), float(sum(range(size)))))


def streams_are_kept(rank: int, size: int) -> None:
    """A collective is after what its stream was given before, and before what a stream is given after a wait for it."""
    one, two = module.Stream(), module.Stream()
    with module.stream(one):
        x = _on_device(torch.full((4,), float(rank))) + 1
        work = dist.all_reduce(x, async_op=True)
    with module.stream(two):
        work.wait()
        doubled = 2 * x
    with module.stream(one):
        work.wait()  # a second time, on another stream
        tripled = 3 * x
        assert_close(tripled.cpu(), torch.full((4,), 3.0 * sum(range(1, size + 1))))
    with module.stream(two):
        assert_close(doubled.cpu(), torch.full((4,), 2.0 * sum(range(1, size + 1))))


def streams_are_kept_by_pieces(rank: int, size: int) -> None:
    """As `streams_are_kept`, where a tensor with gaps is put together of pieces when it is first waited for."""
    one, two, group = module.Stream(), module.Stream(), dist.new_group()
    values = torch.arange(_LARGE, dtype=torch.float32) % 1000
    turned = _on_device(torch.stack([values + rank, -values])).t()
    work = dist.all_reduce(turned, group=group, async_op=True)
    with module.stream(two):
        work.wait()
    with module.stream(one):
        work.wait()
        assert_close(turned.cpu(), torch.stack([size * values + sum(range(size)), -size * values], 1))


def refusals_of_devices(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match="all in host memory or all on cuda"):
        dist.all_gather([torch.ones(1), *[_on_device(torch.ones(1))] * (size - 1)], torch.ones(1))
    assert dist.group.WORLD._get_backend(_ONE) is dist.group.WORLD
    with pytest.raises(RuntimeError, match="serves cpu, cuda, xpu, mps; not hpu"):
        dist.group.WORLD._get_backend(torch.device("hpu"))
