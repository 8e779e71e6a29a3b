"""Stacks of packed matrices, one for each expert of a layer, on processors and on devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.integrations.moe import _grouped_linear

from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.device_codes import DeviceCodes, Held, as_held
from ferrule.engine.weights.device_matrix import AT_ONCE, kernel_name, kernels_for, read_on
from ferrule.engine.weights.formats.grouped import GroupedFormat
from ferrule.engine.weights.formats.packed import PackedStack
from ferrule.engine.weights.matrix import PackedMatrix, pack
from ferrule.engine.weights.pieces import Recipe, of_expert
from ferrule.engine.weights.slicing import Slicing
from ferrule.model.packing import GroupLayout
from ferrule.staging import Uploads


class MatrixStack(PackedStack):
    """Of native matrices."""

    def __init__(self, matrices: Sequence[PackedMatrix]) -> None:
        self.matrices = matrices
        outputs, inputs = matrices[0].shape
        self.shape, self.bytes = (len(matrices), outputs, inputs), sum(each.bytes for each in matrices)

    def multiply(self, x: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
        y = x.new_empty(x.shape[0], self.shape[1])
        start = 0
        for matrix, end in zip(self.matrices, ends.tolist(), strict=True):
            if start < end:
                y[start:end] = matrix.multiply(x[start:end])
            start = end
        return y


class DeviceStack(PackedStack):
    """On a device. Where there is no kernel for it, few rows get the numbers of their own experts only; with more
    rows than experts those of all become numbers, some outputs at a time."""

    def __init__(self, layout: GroupLayout, held: Held, experts: int) -> None:
        self.packed, self.bytes = DeviceCodes(layout, held), held.bytes
        self.shape = (experts, held.codes.shape[0] // experts, self.packed.columns)
        self._kernels = kernels_for(self.packed)
        self.kernel = kernel_name(self._kernels)

    def multiply(self, x: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
        count, outputs, columns = self.shape
        kernels = self._kernels
        if kernels is not None and x.shape[0] <= kernels.MOST_ROWS * count:
            product: Tensor = kernels.multiply_stack(self.packed, x, ends)
            return product
        few = x.shape[0] <= count
        chosen = experts.clamp(max=count - 1)
        step = max(1, AT_ONCE // (max(1, min(x.shape[0], count)) * columns))
        parts = []
        for start in range(0, outputs, step):
            stop = min(outputs, start + step)

            def rows(part: Tensor, start: int = start, stop: int = stop) -> Tensor:
                some = part.view(count, outputs, -1)[:, start:stop]
                return (some.index_select(0, chosen) if few else some).reshape(-1, part.shape[-1])

            numbers = self.packed.numbers(rows).to(x.dtype).view(-1, stop - start, columns)
            if few:
                parts.append(torch.bmm(numbers, x.unsqueeze(-1)).squeeze(-1))
            else:
                parts.append(grouped_product(x, numbers, ends))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def grouped_product(x: Tensor, matrices: Tensor, ends: Tensor, *, inputs_first: bool = False) -> Tensor:
    """Product as of `PackedStack.multiply` by ``matrices`` (experts, out, in), or (experts, in, out)."""
    found: Tensor = _grouped_linear(x, matrices, ends, is_transposed=inputs_first)
    return found


def pack_stack(
    recipe: Recipe,
    cut: Slicing | None,
    experts: int,
    transposed: bool,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    uploads: Uploads,
) -> PackedStack | None:
    """The ``experts`` of this rank, of a stacked parameter that has inputs first where it is ``transposed``; None where
    they are not stored packed, or are to be held as numbers. ``dtype``: of products."""
    stack = []
    for expert in range(experts):
        pieces = of_expert(recipe, cut, expert, transposed, checkpoint)
        if pieces is None or not all(isinstance(each.weight.format, GroupedFormat) for each in pieces):
            return None
        stack.append(pieces)
    if not stack or uploads.device.type == "meta":
        return None
    if uploads.device.type == "cpu":
        return MatrixStack([pack(pieces, checkpoint, dtype) for pieces in stack])
    found = read_on(stack, checkpoint, uploads)
    if found is None or found[0].order is not None:
        return None
    first, parts = found
    return DeviceStack(first.layout, as_held(parts), experts)
