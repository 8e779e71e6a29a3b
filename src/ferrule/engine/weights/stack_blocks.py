"""Blocks of rows that take the same matrix of a stack, as kernels are launched by."""

from __future__ import annotations

import torch
from torch import Tensor


def stack_blocks(ends: Tensor, rows: int, block: int) -> Tensor:
    """Blocks of at most ``block`` rows that take the same matrix: its number, the first row, and the end of the rows
    that take it: (blocks, 3) in int32. There are as many as any ``ends`` (matrices,) need, so that the host need not
    know these: those that are left have no rows."""
    matrices = ends.shape[0]
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    last = torch.cumsum((ends - begins + block - 1) // block, 0)  # the blocks of each matrix and of those before it
    number = torch.arange(-(-rows // block) + min(rows, matrices), device=ends.device)
    matrix = torch.searchsorted(last, number, right=True)
    there = matrix < matrices
    matrix = matrix.clamp(max=matrices - 1)
    before = torch.where(matrix > 0, last[matrix - 1], 0)
    first = torch.where(there, begins[matrix] + (number - before) * block, rows)
    return torch.stack((matrix, first, ends[matrix]), dim=1).int()
