"""Devices that compute: GPUs, the files by which programs reach them, and the torch that is to use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ferrule.links.types.pcie import PcieLink

DeviceKind = Literal["cuda", "xpu"]
"""As torch and ``--device`` call it; AMD's GPUs are ``cuda``, too."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A file of ``/dev`` by which programs reach a device. ``group``: that it belongs to; ``usable``: whether this user
    may read and write it."""

    path: str
    group: str | None
    usable: bool


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A GPU.

    ``driver``: what is bound to it; ``driver_version``: where it is not the kernel's own. ``architecture``: such as
    ``gfx1151`` or ``sm_86``. ``unified``: it has no memory of its own but the host's, which is counted once.
    ``memory_bytes``: what programs can have on it, of a unified one the part of the host's memory that its driver
    lends; None where the driver does not say; ``gtt_bytes``: what amdgpu maps of the host's memory at most;
    ``carved_bytes``: what the firmware took from the host's memory for it. ``window_bytes``: its largest PCI
    region, through which the processor sees its memory. ``nodes``: files of ``/dev`` that programs need. ``link``:
    of the card, which may hold bridges of its own. ``performance_level``: amdgpu's. ``persistent``: NVIDIA's driver
    keeps it awake. ``scheduler_firmware``: version of amdgpu's MES. ``watts_limit``: what NVIDIA's driver lets it draw,
    ``watts_default`` by default. ``no_retry``: amdgpu was told to end programs at page faults (XNACK is off).
    ``iommu_type``: of its group, as in `PcieLink`.
    """

    address: str
    path: str
    kind: DeviceKind
    vendor: str
    name: str
    vendor_id: int
    device_id: int | None = None
    driver: str | None = None
    driver_version: str | None = None
    architecture: str | None = None
    unified: bool = False
    memory_bytes: int | None = None
    gtt_bytes: int | None = None
    carved_bytes: int | None = None
    window_bytes: int | None = None
    nodes: tuple[str, ...] = ()
    link: PcieLink | None = None
    performance_level: str | None = None
    persistent: bool | None = None
    scheduler_firmware: int | None = None
    watts_limit: float | None = None
    watts_default: float | None = None
    no_retry: bool | None = None
    iommu_type: str | None = None

    @property
    def capable(self) -> bool:
        """Whether it is more than the graphics of an ordinary processor."""
        return not self.unified or (self.architecture or "").startswith(("gfx115", "sm_"))


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch, by its ``torch/version.py``: the runtime that it was built for, None for each that it was
    not."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None

    @property
    def runtime(self) -> str | None:
        """``CUDA``, ``ROCm`` or ``XPU``; None where it knows processors only."""
        told = (("CUDA", self.cuda), ("ROCm", self.hip), ("XPU", self.xpu))
        return next((name for name, version in told if version), None)
