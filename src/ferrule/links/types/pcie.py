"""PCIe devices and their links."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCIe device and its link towards the processor.

    ``*_gt_s``: gigatransfers per second and lane (8.0 is PCIe 3.0, 16.0 is 4.0, 32.0 is 5.0); ``*_width``: lanes.
    ``upstream``: the bridges between it and the processor, the nearest first, the root port last. The first one's
    ``max_*`` are what the slot can do. ``iommu_type``: ``identity``, ``DMA``, ``DMA-FQ``.
    """

    address: str
    path: str
    class_code: int | None = None
    class_name: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    vendor: str | None = None
    device: str | None = None
    driver: str | None = None
    current_gt_s: float | None = None
    max_gt_s: float | None = None
    current_width: int | None = None
    max_width: int | None = None
    numa_node: int | None = None
    iommu_type: str | None = None
    upstream: tuple[PcieLink, ...] = ()

    @property
    def slot(self) -> PcieLink | None:
        """The other end of this link: a root port, or the downstream port of a switch."""
        return self.upstream[0] if self.upstream else None

    @property
    def both_ends_gt_s(self) -> float | None:
        """The most that both ends of the link can, as far as they are known."""
        ends = [end.max_gt_s for end in (self, self.slot) if end is not None and end.max_gt_s is not None]
        return min(ends, default=None)

    @property
    def current_gb_s(self) -> float | None:
        """Gbit/s each way after the line code, before packet headers."""
        return pcie_gb_s(self.current_gt_s, self.current_width)


def pcie_gb_s(gt_s: float | None, width: int | None) -> float | None:
    """The line code takes 2 of 10 bits up to 5 GT/s and 2 of 130 above (PCI Express base specification)."""
    if gt_s is None or width is None:
        return None
    return gt_s * width * (0.8 if gt_s <= 5 else 128 / 130)
