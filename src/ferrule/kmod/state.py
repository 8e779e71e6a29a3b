"""State of the driver on a machine, and of what the machine has for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from ferrule.files import FileRecord
from ferrule.kmod.source import MODULE
from ferrule.links import Inventory
from ferrule.links.doctor.cures import family

SCHEMA = 1

Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.]{0,64}\Z")]
"""It becomes part of a path that is removed."""

Trust = Literal["trusted", "pending", "untrusted", "unknown"]


@dataclass(frozen=True, slots=True)
class Signing:
    """Whether this kernel takes only modules that are signed, and what becomes of the key that DKMS signs with.

    ``secure_boot``: None where there is no UEFI. ``certificate``: its path; ``trust``: ``pending`` will be asked for at
    the next start.
    """

    required: bool = False
    secure_boot: bool | None = None
    certificate: str = ""
    key: str = ""
    certificate_there: bool = False
    trust: Trust = "unknown"


@dataclass(frozen=True, slots=True)
class Built:
    """A version of the driver that DKMS knows; ``kernel`` is empty and ``status`` ``added`` where it is not built."""

    version: str
    kernel: str
    status: str


class Record(FileRecord, frozen=True, tag="driver"):
    """Notes of `ferrule driver install`: on disk before each thing is done, so that it can be taken back.

    ``phase``: ``installing`` or ``removing`` as long as not all is done. ``previous``: the version that was there,
    which comes back if this one fails. ``written``: the files of /etc that were written for it.
    """

    phase: Literal["installing", "installed", "removing"]
    version: Version
    previous: Version = ""
    written: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class State:
    """``programs``: those of `look.PROGRAMS` that there are. ``loaded``: the version that is; empty if it has none.

    ``users``: how many use the loaded module. ``on_disk``: the version that `modprobe` would load, ``signer`` who
    signed it. ``package``: the version of the distribution's package of the driver. ``provider``: libibverbs' library
    for our devices. ``kernel_package``: what the distribution calls this kernel (Arch's ``pkgbase``).
    """

    inventory: Inventory
    root: bool
    programs: frozenset[str] = frozenset()
    headers: bool = False
    kernel_package: str = ""
    dkms: str = ""
    built: tuple[Built, ...] = ()
    loaded: str | None = None
    users: int = 0
    on_disk: str | None = None
    signer: str = ""
    signing: Signing = field(default_factory=Signing)
    package: str = ""
    provider: str = ""
    record: Record | None = None

    @property
    def kernel(self) -> str:
        return self.inventory.machine.kernel or ""

    @property
    def family(self) -> str:
        return family(self.inventory.machine)

    @property
    def devices(self) -> tuple[str, ...]:
        """Our RDMA devices, by name."""
        return tuple(one.name for one in self.inventory.rdma if one.driver == MODULE)

    def installed(self, version: str) -> bool:
        """Whether DKMS has that version in place for the kernel that runs."""
        return any((one.version, one.kernel, one.status) == (version, self.kernel, "installed") for one in self.built)
