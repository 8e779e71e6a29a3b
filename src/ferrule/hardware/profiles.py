"""Profile types of a machine, a cable and a whole lab, each figure with its source. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ferrule.hardware.shaping import Shaping
from ferrule.hardware.topology import CableSpec, Topology

MAKERS = {"1002": "amd", "10de": "nvidia", "8086": "intel"}
"""Of GPUs, by PCI vendor."""


@dataclass(frozen=True)
class Figure:
    """A number and where it is from: ``source`` in words, ``url`` where it can be read ("" for a choice)."""

    value: float
    source: str
    url: str = ""


@dataclass(frozen=True)
class Machine:
    """Machine that a host stands for. `None` where no figure is published.

    ``memory`` that the GPU can reach, in bytes; ``memory_bandwidth`` in bytes per second, as the maker states it;
    ``flops`` operations per second by type (`DTYPES`), dense, of 16 bit types summed up in FP32; ``disk_read`` in bytes
    per second, one large file; ``watts_idle``, ``watts_busy`` of the whole machine; ``price`` in US dollars, new;
    ``gpu``: PCI vendor and device of its GPU, such as ``10de:2204``, by which an inventory tells what it is.
    """

    name: str
    title: str
    memory: Figure
    memory_bandwidth: Figure
    flops: Mapping[str, Figure]
    disk_read: Figure | None = None
    watts_idle: Figure | None = None
    watts_busy: Figure | None = None
    price: Figure | None = None
    gpu: tuple[str, ...] = ()

    @property
    def maker(self) -> str:
        """Of its GPU: ``apple``, ``nvidia``, ``amd``, ``intel``; empty where there is none."""
        if self.title.startswith("Apple"):
            return "apple"
        vendors = {pci.partition(":")[0] for pci in self.gpu}
        return next((MAKERS[vendor] for vendor in vendors if vendor in MAKERS), "")

    @property
    def half_precision(self) -> Figure:
        """Operations per second in 16 bits; in 32 where that is all that is known."""
        return next(self.flops[dtype] for dtype in ("bf16", "fp16", *self.flops) if dtype in self.flops)


@dataclass(frozen=True)
class Usb4Lanes:
    """Trained lanes of a USB4 cable: so many lanes of so many Gb/s each."""

    lanes: int
    gbps: int


@dataclass(frozen=True)
class CableProfile:
    """A kind of cable; ``figures`` are what it was made of, by the name of the number.

    ``transport``: what moves tensors over it on real machines, ``tcp`` or ``verbs``. ``usb4``: None if it is no USB4
    cable, or one that virtual machines cannot have.
    """

    name: str
    title: str
    shaping: Shaping
    mtu: int | None
    figures: Mapping[str, Figure]
    transport: str = "tcp"
    usb4: Usb4Lanes | None = None


@dataclass(frozen=True)
class LabProfile:
    """A whole lab. ``hosts`` are the names of its hosts and ``machines`` what they are, in the same order."""

    name: str
    title: str
    hosts: tuple[str, ...]
    machines: tuple[Machine, ...]
    cables: tuple[tuple[CableProfile, tuple[int, ...]], ...]

    @property
    def topology(self) -> Topology:
        return Topology(
            len(self.hosts),
            tuple(CableSpec(hosts, mtu=cable.mtu, **vars(cable.shaping)) for cable, hosts in self.cables),
        )
