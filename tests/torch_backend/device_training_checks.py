"""Checks, run by every rank, that training on an accelerator, the emulated one, is that on the processor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.emulated.machine import machine, poison
from ferrule.engine.devices.emulated.tensor import EmulatedTensor

_ONE = EmulatedDevice().torch_device
_FREE, _ALLOCATE = _fsdp_param.free_storage, _fsdp_param.alloc_storage


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 50))


def _trained(prepare: Callable[[nn.Sequential], nn.Module], rank: int, device: torch.device) -> list[Tensor]:
    """The losses of some steps and the weights after them, as host tensors."""
    plain = _model().to(device)
    model = prepare(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    words = torch.randint(50, (4, 4, 9), generator=torch.Generator().manual_seed(rank))
    kept = []
    for batch in words:
        given, wanted = batch[:, :-1].to(device), batch[:, 1:].to(device)
        loss = cross_entropy(model(given).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach().cpu())
    weights = [getattr(weight, "full_tensor", lambda weight=weight: weight)() for weight in model.parameters()]
    return kept + [weight.detach().cpu() for weight in weights]


def data_parallel_training(rank: int, size: int) -> None:
    """DDP trains as on the processor, to the last bit."""
    found = _trained(lambda model: DistributedDataParallel(model, bucket_cap_mb=0.005), rank, _ONE)
    expected = _trained(lambda model: DistributedDataParallel(model, bucket_cap_mb=0.005), rank, torch.device("cpu"))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def _free(gathered: Tensor) -> None:
    if isinstance(gathered, EmulatedTensor):
        machine(0).start(lambda: poison(gathered.cells))
    else:
        _FREE(gathered)


def _allocate(gathered: Tensor) -> None:
    if not isinstance(gathered, EmulatedTensor):
        _ALLOCATE(gathered)


def sharded_training(rank: int, size: int) -> None:
    """FSDP2, with streams of its own, trains as on the processor, to the last bit.

    It frees gathered weights by resizing their storage. A tensor of a device written in Python has none that torch
    could resize, so here the weights are spoilt instead."""
    _fsdp_param.free_storage, _fsdp_param.alloc_storage = _free, _allocate

    def sharded(model: nn.Sequential) -> nn.Module:
        mesh = init_device_mesh(model[0].weight.device.type, (size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    found, expected = _trained(sharded, rank, _ONE), _trained(sharded, rank, torch.device("cpu"))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert len(machine(0).timeline.streams) > 2
