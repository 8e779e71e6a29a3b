"""The computer, its system, and what of the system matters to cables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UNLIMITED_BYTES = (1 << 63) - 1
"""A limit that is no limit, so that limits can be compared."""

System = Literal["linux", "macos", "unknown"]
IommuMode = Literal["off", "passthrough", "translated"]


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded kernel module. ``taint``: the kernel's letters, such as ``OE`` (O out of tree, E not signed)."""

    name: str
    taint: str = ""


@dataclass(frozen=True, slots=True)
class Iommu:
    """``groups``: how many; ``types``: how many groups are of each type, such as ``(("DMA-FQ", 20),)``."""

    groups: int
    types: tuple[tuple[str, int], ...] = ()

    @property
    def mode(self) -> IommuMode:
        """Off without groups; translated as soon as one group translates addresses."""
        if not self.groups:
            return "off"
        return "passthrough" if self.types and all(name == "identity" for name, _ in self.types) else "translated"


@dataclass(frozen=True, slots=True)
class Clock:
    """``synchronized``: whether the system says that its clock follows a server. ``offset_seconds``: from it."""

    synchronized: bool | None = None
    service: str | None = None
    offset_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The computer and its system.

    ``memlock_bytes``: memory that this user may pin (`UNLIMITED_BYTES` if there is no limit);
    ``memlock_hard_bytes``: how far that can be raised without root. ``available_modules``: those of the kernel's that
    were looked for and are there, loaded or not. ``rdma_ctl``: what macOS says, such as ``enabled``.
    ``power_profile``: of the firmware, such as ``performance``, ``balanced``, ``low-power``. ``governor`` and
    ``frequency_driver``: what chooses the processor's frequency. ``software``: versions of Ferrule and what it runs on,
    such as ``("python", "3.12.3")``. ``tree``: ``live``, or the name of the record.
    """

    tree: str
    system: System = "unknown"
    name: str | None = None
    os_name: str | None = None
    os_id: str | None = None
    os_like: tuple[str, ...] = ()
    os_version: str | None = None
    os_build: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    vendor: str | None = None
    product: str | None = None
    bios: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    boot_command_line: tuple[str, ...] | None = None
    iommu: Iommu | None = None
    secure_boot: bool | None = None
    lockdown: str | None = None
    modules: tuple[Module, ...] = ()
    available_modules: tuple[str, ...] | None = None
    memlock_bytes: int | None = None
    memlock_hard_bytes: int | None = None
    clock: Clock | None = None
    rdma_ctl: str | None = None
    power_profile: str | None = None
    governor: str | None = None
    frequency_driver: str | None = None
    software: tuple[tuple[str, str], ...] = ()

    def version(self, name: str) -> str | None:
        """Of ``ferrule``, ``python`` or a package; None where it is not installed, or not told."""
        return dict(self.software).get(name)

    def module(self, name: str) -> Module | None:
        """The loaded module of that name; ``-`` and ``_`` are the same to the kernel."""
        wanted = name.replace("-", "_")
        return next((one for one in self.modules if one.name.replace("-", "_") == wanted), None)


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the system that matters to cables, such as ``NetworkManager``. ``state`` as systemd tells it."""

    name: str
    state: str

    @property
    def active(self) -> bool:
        return self.state == "active"
