"""Packed codes in a device's own memory, and the numbers that they stand for.

Codes lie as on the processor in groups of columns, two to a byte where they have at most 4 bits; scales as the format
stores them. The numbers follow by `GroupedMatrix.numbers`' formula in float32, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ferrule.engine.weights.groups import VALUES
from ferrule.model.packing import GroupLayout

TRIAL_ERRORS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""By type of the activations, what a kernel's products may be wrong by when it is tried, as part of the largest."""


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

    def parts(self) -> list[Tensor | None]:
        return [self.codes, self.scales, self.offsets, self.supers, self.super_offsets]

    def pick(self, rows: Callable[[Tensor], Tensor]) -> Held:
        """Selection of ``rows`` from each part."""
        return as_held([None if each is None else rows(each) for each in self.parts()])

    @property
    def bytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in self.parts() if each is not None)


class DeviceCodes:
    """Rows of packed codes on a device, of one matrix or of several. ``columns``: as they are stored, which an order
    may fill up; ``values``: those that codes stand for, None for integers."""

    def __init__(self, layout: GroupLayout, held: Held) -> None:
        self.layout, self.held, self.device = layout, held, held.codes.device
        self.columns = held.codes.shape[1] * (2 if layout.bits <= 4 else 1)
        values = VALUES.get(layout.values)
        self.values = None if values is None else torch.from_numpy(values).to(self.device)

    def numbers(self, rows: Callable[[Tensor], Tensor]) -> Tensor:
        """Those that ``rows`` picks, columns as they are stored: (rows, columns) in float32."""
        held, layout = self.held.pick(rows), self.layout
        codes = held.codes
        if layout.bits <= 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(codes.shape[0], -1)
        numbers = codes.float() if self.values is None else self.values[codes.int()]
        numbers = numbers.reshape(codes.shape[0], held.scales.shape[1], -1)
        if layout.zero:
            numbers = numbers - layout.zero
        numbers = numbers * _whole(held.scales, held.supers).unsqueeze(-1)
        if held.offsets is not None:
            offsets = _whole(held.offsets, held.super_offsets)
            if layout.zero_points:
                offsets = offsets * -held.scales.float()
            numbers = numbers + offsets.unsqueeze(-1)
        return numbers.reshape(codes.shape[0], -1)


def as_held(parts: list[Tensor | None]) -> Held:
    codes, scales, *others = parts
    assert codes is not None
    assert scales is not None
    return Held(codes, scales, *others)


def _whole(scales: Tensor, supers: Tensor | None) -> Tensor:
    """Scales in float32: (rows, groups)."""
    found = scales.float()
    if supers is None:
        return found
    times = math.ceil(found.shape[1] / supers.shape[1])
    return found * supers.repeat_interleave(times, dim=1)[:, : found.shape[1]]
