"""Layers that hold a part of their weights and put the parts' results together over the fabric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ferrule.engine.devices import RankGroup
from ferrule.model import Range


def gather_last(group: RankGroup, x: Tensor, widths: Sequence[int], root: int | None) -> Tensor:
    """Join the ranks' parts of the last dimension: (..., ``widths[rank]``), or all as wide as the widest, on each rank
    give (..., their sum) on rank ``root``, and (..., 0) on the others; on all with None."""
    widest = max(widths)
    rows = x.reshape(-1, x.shape[-1])
    if x.shape[-1] < widest:  # `pad` copies also where nothing is missing
        rows = functional.pad(rows, (0, widest - x.shape[-1]))
    rows = rows.contiguous()
    parts: Tensor | None = group.all_gather(rows) if root is None else group.gather(rows, root)
    if parts is None:
        return x[..., :0]
    by_rank = parts.view(group.size, *rows.shape)
    if min(widths) == widest:
        joined = by_rank.transpose(0, 1)
    else:
        joined = torch.cat([part[:, :width] for part, width in zip(by_rank, widths, strict=True)], dim=1)
    return joined.reshape(*x.shape[:-1], sum(widths))


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are shared out: partial products are summed, then the bias is added.

    With ``split_input`` the input arrives whole on every rank and is cut here, from that place on.
    """

    def __init__(self, linear: nn.Linear, group: RankGroup, split_input: int | None = None) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.group = group
        self.split_input = split_input

    def forward(self, x: Tensor) -> Tensor:
        if self.split_input is not None:
            x = x[..., self.split_input : self.split_input + self.weight.shape[1]]
        y = self.product(x)
        self.group.all_reduce(y)
        if self.bias is not None:
            y += self.bias
        return y

    def product(self, x: Tensor) -> Tensor:
        """This rank's term of the sum."""
        return functional.linear(x, self.weight)


class GatheredLinear(nn.Module):
    """A linear layer whose output features are shared out and joined again, on rank ``root`` or (None) on all.
    ``widths``: how many each rank has."""

    def __init__(self, linear: nn.Linear, group: RankGroup, widths: Sequence[int], root: int | None = None) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.group = group
        self.widths = tuple(widths)
        self.root = root

    def forward(self, x: Tensor) -> Tensor:
        return gather_last(self.group, self.product(x), self.widths, self.root)

    def product(self, x: Tensor) -> Tensor:
        """This rank's output features."""
        return functional.linear(x, self.weight, self.bias)


class VocabularyParallelEmbedding(nn.Module):
    """An embedding whose rows are shared out: each rank looks up its own tokens, zeros elsewhere, and they are summed.

    The sum has one term that is not zero, so it is exact. ``table`` is the model's own embedding module, which may do
    more than look up (Gemma scales); its result for a zero row must be zero.
    """

    def __init__(self, table: nn.Embedding, group: RankGroup, first: int, last: int) -> None:
        super().__init__()
        self.table = table
        self.table.padding_idx = None  # an index into the whole vocabulary, of use only in training
        self.group = group
        self.first, self.last = first, last

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        elsewhere = (ids < self.first) | (ids >= self.last)
        rows: Tensor = self.table((ids - self.first).masked_fill(elsewhere, 0))
        rows = rows.masked_fill(elsewhere.unsqueeze(-1), 0).contiguous()
        self.group.all_reduce(rows)
        return rows


NUMBERS = "ferrule_numbers"
"""Attribute of modules whose weight is used in other ways, too, and is held as numbers."""


def multiplies(module: nn.Module) -> bool:
    """Whether ``module`` only multiplies by its weight."""
    return not hasattr(module, NUMBERS) and isinstance(module, nn.Linear | RowParallelLinear | GatheredLinear)


def sum_output(module: nn.Module, group: RankGroup) -> None:
    """Make ``module`` return the sum over ranks of what it computes (experts that each rank holds a slice of)."""
    forward: Callable[..., Tensor] = module.forward

    def summed(*args: Any, **kwargs: Any) -> Tensor:
        y = forward(*args, **kwargs).contiguous()
        group.all_reduce(y)
        return y

    module.forward = summed


def hold_experts(module: nn.Module, group: RankGroup, held: Sequence[Range]) -> None:
    """Make an experts module run only the experts that this rank of ``held`` has, and sum the ranks' results.

    Routes to other ranks' experts get the index one past the local ones, which transformers' experts skip, and
    weight 0.
    """
    forward: Callable[..., Tensor] = module.forward
    first, last = held[group.rank]
    count = last - first
    module.num_experts = count  # type: ignore[assignment]
    module._is_expert_parallel = True  # type: ignore[assignment]
    module.held_experts = tuple(held)  # type: ignore[assignment]

    def dispatched(hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        elsewhere = (index < first) | (index >= last)
        y = forward(hidden, (index - first).masked_fill(elsewhere, count), weights.masked_fill(elsewhere, 0.0))
        y = y.contiguous()
        group.all_reduce(y)
        return y

    module.forward = dispatched


class PassThrough(nn.Module):
    """Stands where a layer of another pipeline stage was: gives back its first argument. Models ask some for its kind,
    so it has what ``like`` says of itself."""

    def __init__(self, like: nn.Module | None = None) -> None:
        super().__init__()
        told = {} if like is None else vars(like)
        for name, value in told.items():
            if isinstance(value, str | int) and name not in vars(self):
                setattr(self, name, value)

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class StageInput(PassThrough):
    """Stands where the first layer was on later pipeline stages: gives what the stage before sent, whatever the
    model did on the way here to what it takes for embeddings (Granite and others scale them)."""

    hidden: Tensor

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.hidden


def shrink(parameter: nn.Parameter, shape: tuple[int, ...]) -> nn.Parameter:
    """A parameter without memory (on the meta device) that has ``shape`` and else is like ``parameter``."""
    return nn.Parameter(torch.empty(shape, dtype=parameter.dtype, device="meta"), requires_grad=False)
