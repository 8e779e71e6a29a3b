"""Packed matrices in a device's own memory. Where Triton has no kernel for the device (`triton_product`), torch's
operations multiply by them: some rows at a time become numbers.

Codes lie as on the processor in groups of columns, two to a byte where they have at most 4 bits; scales as the format
stores them. The numbers follow by `GroupedMatrix.numbers`' formula in float32, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ferrule.engine.weights.formats.format import StoredTensors
from ferrule.engine.weights.formats.grouped import steps
from ferrule.engine.weights.formats.packed import Packed
from ferrule.engine.weights.groups import VALUES, GroupedMatrix, Rectangle
from ferrule.engine.weights.matrix import Piece
from ferrule.model.packing import SUPER, GroupLayout, Scale

_AT_ONCE = 1 << 24
"""Numbers that are unpacked at a time while a product is computed: 32 MB of bfloat16."""
_SCALES: dict[Scale, torch.dtype] = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
    "e8m0": torch.bfloat16,  # whose exponent has the same 8 bits
}  # fmt: skip


@dataclass(frozen=True)
class Held:
    """Parts of a `GroupedMatrix` on a device, with as many rows. ``codes``: (rows, columns), or half as many bytes.
    ``scales`` and ``offsets``: (rows, groups); multiples of ``supers`` and ``super_offsets`` where there are those, and
    ``offsets`` of minus the scales where the layout has zero points."""

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None = None
    supers: Tensor | None = None
    super_offsets: Tensor | None = None

    def parts(self) -> list[Tensor]:
        given = (self.codes, self.scales, self.offsets, self.supers, self.super_offsets)
        return [each for each in given if each is not None]


class DeviceMatrix(Packed):
    """A packed weight on a device. ``dtype``: of products. ``columns``: as they are stored, which an order may fill up;
    ``values``: those that codes stand for, None for integers."""

    def __init__(
        self, layout: GroupLayout, held: Held, shape: tuple[int, int], dtype: torch.dtype, order: Tensor | None = None
    ) -> None:
        self.layout, self.held, self.dtype = layout, held, dtype
        self.shape, self.device = torch.Size(shape), held.codes.device
        self.columns = held.codes.shape[1] * (2 if layout.bits <= 4 else 1)
        self._order = order
        values = VALUES.get(layout.values)
        self.values = None if values is None else torch.from_numpy(values).to(self.device)
        self._kernel = _kernel_for(self)
        sizes = [each.numel() * each.element_size() for each in held.parts()]
        self.bytes = sum(sizes) + (0 if order is None else order.numel() * order.element_size())

    def multiply(self, x: Tensor) -> Tensor:
        if self._order is not None:
            x = functional.pad(x, (0, 1)).index_select(-1, self._order)  # -1 became the column of zeros
        if self._kernel is not None:
            return self._kernel(self, x)
        step = max(1, _AT_ONCE // max(1, x.shape[-1]))
        parts = [functional.linear(x, self._numbers(a, a + step).to(x.dtype)) for a in range(0, self.shape[0], step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _numbers(self, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop``, columns as they are stored: (rows, columns) in float32."""
        held, layout = self.held, self.layout
        codes = held.codes[start:stop]
        rows = codes.shape[0]
        if layout.bits <= 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(rows, -1)
        numbers = codes.float() if self.values is None else self.values[codes.int()]
        numbers = numbers.reshape(rows, held.scales.shape[1], -1)
        if layout.zero:
            numbers = numbers - layout.zero
        numbers = numbers * _whole(held.scales, held.supers, start, stop).unsqueeze(-1)
        if held.offsets is not None:
            offsets = _whole(held.offsets, held.super_offsets, start, stop)
            if layout.zero_points:
                offsets = offsets * -_whole(held.scales, None, start, stop)
            numbers = numbers + offsets.unsqueeze(-1)
        return numbers.reshape(rows, -1)


def _kernel_for(matrix: DeviceMatrix) -> Callable[[DeviceMatrix, Tensor], Tensor] | None:
    """A product without numbers on the way, where there is one for the device and the matrix."""
    if matrix.device.type not in ("cuda", "xpu") or find_spec("triton") is None:
        return None
    from ferrule.engine.weights import triton_product

    return triton_product.multiply if triton_product.fits(matrix) else None


def _whole(scales: Tensor, supers: Tensor | None, start: int, stop: int) -> Tensor:
    """Scales of the rows ``start`` to ``stop`` in float32: (rows, groups)."""
    found = scales[start:stop].float()
    if supers is None:
        return found
    times = math.ceil(found.shape[1] / supers.shape[1])
    return found * supers[start:stop].repeat_interleave(times, dim=1)[:, : found.shape[1]]


def pack_on(
    piece: Piece, source: StoredTensors, dtype: torch.dtype, device: torch.device, pad: int = 0
) -> DeviceMatrix | None:
    """``piece`` with ``pad`` rows of zeros behind it; None where it is to be held as numbers. It is read and copied to
    the device some rows at a time."""
    part = piece.part
    rows, columns = part.shape
    spans = list(steps(Rectangle(((0, rows),), ((0, columns),))))
    first = piece.groups(part.some_rows(*spans[0]), source) if spans else None
    if first is None or first.codes.shape[1] % 2:
        return None
    rooms: list[Tensor | None] = [
        None if each is None else torch.zeros((rows + pad, *each.shape[1:]), dtype=each.dtype, device=device)
        for each in _host(first)
    ]
    for start, stop in spans:
        groups = first if start == 0 else piece.groups(part.some_rows(start, stop), source)
        if groups is None or groups.scales.shape[1] != first.scales.shape[1]:
            return None
        for room, some in zip(rooms, _host(groups), strict=True):
            if room is not None and some is not None:
                room[start:stop].copy_(some)
    return _made(first, rooms, (rows + pad, columns), dtype)


def hold(groups: GroupedMatrix, dtype: torch.dtype, device: torch.device) -> DeviceMatrix:
    """``groups`` as they are, on a device. ``dtype``: of products."""
    parts = [None if each is None else each.to(device) for each in _host(groups)]
    rows, columns = groups.codes.shape
    return _made(groups, parts, (rows, columns), dtype)


def _made(first: GroupedMatrix, parts: list[Tensor | None], shape: tuple[int, int], dtype: torch.dtype) -> DeviceMatrix:
    codes, scales, *others = parts
    assert codes is not None
    assert scales is not None
    order = None
    if first.order is not None:
        order = torch.from_numpy(np.where(first.order < 0, shape[1], first.order)).to(codes.device)
    return DeviceMatrix(first.layout, Held(codes, scales, *others), shape, dtype, order)


def _host(groups: GroupedMatrix) -> list[Tensor | None]:
    """The fields of `Held`, in host memory."""
    layout = groups.layout
    codes = groups.codes if layout.bits > 4 else groups.codes[:, ::2] + groups.codes[:, 1::2] * np.uint8(16)
    found: list[Tensor | None] = [torch.from_numpy(np.ascontiguousarray(codes))]
    for values, supers in ((groups.scales, groups.supers), (groups.offsets, groups.super_offsets)):
        if values is None:
            found.append(None)
        elif supers is not None:
            wide = np.repeat(supers, SUPER * values.shape[1] // groups.codes.shape[1], axis=1)
            found.append(_multiples(values, wide).to(torch.int8))
        elif values is groups.offsets and layout.zero_points:
            found.append(_multiples(values, -groups.scales).to(torch.uint8))
        else:
            found.append(torch.from_numpy(np.ascontiguousarray(values)).to(_SCALES[layout.scale]))
    for each in (groups.supers, groups.super_offsets):
        found.append(None if each is None else torch.from_numpy(np.ascontiguousarray(each)))
    return found


def _multiples(values: NDArray[np.float32], of: NDArray[np.float32]) -> Tensor:
    """The whole numbers by which ``of`` was multiplied."""
    return torch.from_numpy(np.rint(np.divide(values, of, out=np.zeros_like(values), where=of != 0)).astype(np.int16))
