"""Collectives of tensors that differ in length from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions

from ferrule.torch_backend.process_group import FabricProcessGroup

WAITED_FOR = AllreduceOptions()
"""Options of a call that returns with its result; a sum, where there is something to reduce."""
WAITED_FOR.asyncOp = False


def all_gather(group: FabricProcessGroup, t: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Tensors of all ranks along the first axis; ``sizes``: how long each rank's is, the same for all without."""
    lengths = list(sizes) if sizes is not None else [t.shape[0]] * group.size()
    if len(lengths) != group.size() or lengths[group.rank()] != t.shape[0]:
        raise ValueError(f"rank {group.rank()} has {t.shape[0]} rows; sizes of {group.size()} ranks say {lengths}")
    out = t.new_empty((sum(lengths), *t.shape[1:]))
    group.allgather([list(torch.split(out, lengths))], [t], WAITED_FOR)
    return out


def reduce_scatter(group: FabricProcessGroup, t: Tensor, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
    """This rank's part of the sum of all ranks' tensors along axis ``dim``. ``sizes``: as of `all_gather`, of parts."""
    rows = t.movedim(dim, 0).contiguous()
    if sizes is None and rows.shape[0] % group.size():
        raise ValueError(f"axis {dim} of shape {tuple(t.shape)} does not divide into {group.size()} equal parts")
    lengths = list(sizes) if sizes is not None else [rows.shape[0] // group.size()] * group.size()
    if len(lengths) != group.size() or sum(lengths) != rows.shape[0]:
        raise ValueError(f"axis {dim} of shape {tuple(t.shape)} is not {lengths}, of {group.size()} ranks")
    out = rows.new_empty((lengths[group.rank()], *rows.shape[1:]))
    group.reduce_scatter([out], [list(torch.split(rows, lengths))], WAITED_FOR)
    return out.movedim(0, dim).contiguous()
