"""The protocol of a device: everything that a rank does with tensors beside computing on them goes through it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Device(Protocol):
    """``title``: for people, such as ``cpu (2 threads)``. ``torch_device``: where tensors are made."""

    title: str
    torch_device: torch.device

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory on the device, not initialised."""
        ...

    def upload(self, values: Tensor) -> Tensor:
        """A tensor in host memory, on the device."""
        ...

    def download(self, values: Tensor) -> Tensor:
        """A tensor on the device, in host memory, when what computes it is done."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was started is done."""
        ...

    def memory_free(self) -> int:
        """Bytes that can still be allocated, by what the device itself says; where tensors are in host memory, also by
        the control group."""
        ...
