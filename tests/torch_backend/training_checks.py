"""Checks, run by every rank, of training on the backend ferrule: FSDP2, checkpoints, pipelines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

_WORDS, _WIDTH, _STEPS = 50, 32, 6


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.inner = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


def _model(blocks: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(_WORDS, _WIDTH), *(_Block() for _ in range(blocks)), nn.Linear(_WIDTH, _WORDS))


def _batches(size: int) -> tuple[Tensor, Tensor]:
    """Words that count up from anywhere: something to learn."""
    first = torch.randint(_WORDS, (_STEPS, 4 * size, 1), generator=torch.Generator().manual_seed(1))
    words = (first + torch.arange(9)) % _WORDS
    return words[..., :-1], words[..., 1:]


def _loss(output: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(output.flatten(0, -2), wanted.flatten())


def _shard(model: nn.Sequential, **options: object) -> nn.Sequential:
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def _train(model: nn.Module, part: Callable[[Tensor], Tensor], size: int) -> list[float]:
    """The loss of each step, over all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for given, wanted in zip(*_batches(size), strict=True):
        loss = _loss(model(part(given)), part(wanted))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(float(total))
    return losses


def fully_sharded(rank: int, size: int) -> None:
    """The losses of sharded training are those of one process, also with bfloat16 and with a 2-D mesh."""
    expected = _train(_model(2), lambda batch: batch, size)
    assert expected[-1] < expected[0] - 0.2

    def part(batch: Tensor) -> Tensor:
        return batch[4 * rank : 4 * rank + 4]

    assert_close(_train(_shard(_model(2)), part, size), expected, rtol=1e-4, atol=1e-4)
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("replicate", "shard"))
    assert_close(_train(_shard(_model(2), mesh=mesh), part, size), expected, rtol=1e-4, atol=1e-4)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert_close(_train(_shard(_model(2), mp_policy=policy), part, size), expected, rtol=0.05, atol=0.05)


def gradients_divided_otherwise(rank: int, size: int) -> None:
    """FSDP2 asks for a sum of gradients that are multiplied first when its divisor is not the number of ranks."""
    plain, scaled = _shard(_model(1)), _shard(_model(1))
    for module in scaled.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(4.0 * size)
    given, wanted = (batch[0, 4 * rank : 4 * rank + 4] for batch in _batches(size))
    for model in (plain, scaled):
        _loss(model(given), wanted).backward()
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert_close(one.grad.to_local(), 4 * other.grad.to_local())


def checkpoints(rank: int, size: int) -> None:
    """Saved and loaded, every shard of model and optimizer is bit by bit what it was."""
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = _shard(_model(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    given, wanted = (batch[0, 4 * rank : 4 * rank + 4] for batch in _batches(size))
    _loss(model(given), wanted).backward()
    optimizer.step()
    before = [weight.detach().to_local().clone() for weight in model.parameters()]
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])

    other = _shard(_model(2))
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    weights, moments = get_state_dict(other, other_optimizer)
    checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])
    set_state_dict(other, other_optimizer, model_state_dict=weights, optim_state_dict=moments)
    for was, weight in zip(before, other.parameters(), strict=True):
        assert torch.equal(was, weight.detach().to_local())
    steps = [state["step"] for state in other_optimizer.state_dict()["state"].values()]
    assert steps
    assert all(step == 1 for step in steps)


def pipelines(rank: int, size: int) -> None:
    """Loss and gradients of each schedule are those of the whole model."""
    parts = 2 * size  # the interleaved schedule has two stages on every rank
    whole = _model(parts - 2)
    given, wanted = (batch[0] for batch in _batches(size))
    expected = _loss(whole(given), wanted)
    expected.backward()
    halves = [nn.Sequential(*_model(parts - 2)[2 * r : 2 * r + 2]) for r in range(size)]
    quarters = [nn.Sequential(layer) for layer in _model(parts - 2)]
    device = torch.device("cpu")
    for schedule, stages, numbers in [
        (ScheduleGPipe, halves, [rank]),
        (Schedule1F1B, halves, [rank]),
        (ScheduleInterleaved1F1B, quarters, [rank, rank + size]),
    ]:
        modules = [stages[number] for number in numbers]
        for module in modules:
            module.zero_grad()
        made = [
            PipelineStage(module, number, len(stages), device) for number, module in zip(numbers, modules, strict=True)
        ]
        runs = schedule(made if len(made) > 1 else made[0], n_microbatches=4, loss_fn=_loss)
        losses: list[Tensor] = []
        runs.step(*([given] if rank == 0 else []), **({"target": wanted, "losses": losses} if rank == size - 1 else {}))
        if rank == size - 1:
            assert_close(torch.stack(losses).mean(), expected)
        for number, module in zip(numbers, modules, strict=True):
            layers = whole[2 * number : 2 * number + 2] if len(stages) == size else whole[number : number + 1]
            for ours, theirs in zip(module.parameters(), layers.parameters(), strict=True):
                assert_close(ours.grad, theirs.grad, msg=lambda text: f"{schedule.__name__}: {text}")  # noqa: B023
