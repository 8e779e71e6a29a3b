"""Uploads of weights: from a file's pages to a device through pinned host memory, a few megabytes at a time."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from ferrule.staging.copier import Event, copier_of

UPLOAD_BYTES = 8 << 20
"""Of a copy: long enough for the rate of the bus."""
_UNDER_WAY = 4
"""Copies that the host is ahead of the device, so that a slow bus does not fill the host's memory."""


class Uploads:
    """Writes to tensors of ``device``. Those to host memory are done when they return; for others the host has read
    the values, and what is started later finds them there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copier = copier_of(device)
        self._under_way: deque[Event] = deque()

    def write(self, into: Tensor, values: Tensor) -> None:
        """``values`` in host memory, of the same shape, become those of ``into``, in its type."""
        if into.shape != values.shape:
            raise RuntimeError(f"expected shape {tuple(into.shape)}, not {tuple(values.shape)}")
        if self._copier is None:
            into.copy_(values)
            return
        if into.dim() == 0:
            into, values = into.view(1), values.view(1)
        row = into.nbytes // max(1, len(into))
        if row > UPLOAD_BYTES and into.dim() > 1:
            for one, its in zip(into, values, strict=True):
                self.write(one, its)
            return
        step = max(1, UPLOAD_BYTES // max(1, row))
        for start in range(0, len(into), step):
            part = values[start : start + step]
            host = self._copier.pinned(tuple(part.shape), into.dtype).copy_(part)
            into[start : start + step].copy_(host, non_blocking=True)
            self._under_way.append(self._copier.record())
            if len(self._under_way) > _UNDER_WAY:
                self._under_way.popleft().synchronize()
