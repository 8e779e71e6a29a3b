"""The options of a lab of virtual machines, from the commands to the process that holds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ferrule.errors import ConfigError
from ferrule.hardware import LabProfile
from ferrule.kmod.source import MODULE, driver_directory
from ferrule.lab.vm.image.sources import host_release, newest_suite
from ferrule.lab.vm.joined import NETWORK, TOOLS, JoinedGuests
from ferrule.lab.vm.kernel.debug import DEBUG_KERNELS
from ferrule.lab.vm.lab import RDMA, VmLab
from ferrule.lab.vm.machine.guest import Guest

KERNELS = {"6.1": "bookworm", "6.12": "trixie", "newest": ""}
"""Series of stock kernels and the Debian suites that have them; the newest stable one is in that of `newest_suite`."""

_PYTHON = (
    *("numpy", "ferrule", "typer", "click", "shellingham", "annotated_doc", "typing_extensions"),
    *("rich", "markdown_it", "mdurl", "pygments"),
)
"""Packages that ``ferrule`` needs in a guest to look at its links and at the machine, with any version of its
dependencies."""

_USERS = ("ib_uverbs", "rdma_ucm")
"""By which programs reach a device; newer kernels leave them to udev."""


def machines_with(kernel: str, packages: Sequence[str] = TOOLS) -> VmLab:
    """Machines whose guests boot this kernel: one of `KERNELS` or of `DEBUG_KERNELS`, or that of a Debian suite.

    Raises `ConfigError` for what names no kernel, `LabError` where no guest can run.
    """
    if kernel not in KERNELS and not re.fullmatch(r"[a-z]+(-backports)?", kernel) and kernel not in DEBUG_KERNELS:
        names = ", ".join([*KERNELS, *DEBUG_KERNELS])
        raise ConfigError(f"there is no kernel {kernel!r}; choose {names}, or a Debian suite (trixie-backports)")
    return VmLab(packages=packages, suite=KERNELS.get(kernel, kernel) or newest_suite(host_release()))


@dataclass(frozen=True)
class VmOptions:
    """``kernel``: see `machines_with`. ``modules``: names, or paths of ``.ko`` files. ``packages``:
    Debian packages beside those that labs have. ``rdma``: soft-RoCE on each cable, with its tools. ``driver``: our RDMA
    driver on the cables, built for the guests' kernel, with the same tools. ``python``: guests can run ``ferrule``.
    ``trace``: a file for what crosses the cables, or empty. ``hops``: rings of each controller."""

    kernel: str = "newest"
    cpus: int = 1
    memory_mb: int = 1024
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    rdma: bool = False
    driver: bool = False
    python: bool = False
    trace: str = ""
    hops: int = 12

    def machines(self) -> VmLab:
        """Machines to boot on. Raises `ConfigError` for what names no kernel, `LabError` where no guest can run."""
        packages = dict.fromkeys([*TOOLS, *(RDMA if self.rdma or self.driver else ()), *self.packages])
        return machines_with(self.kernel, tuple(packages))

    def prepare(self) -> None:
        """Fetch and build what is missing, so that guests boot at once."""
        machines = self.machines()
        machines.prepare()
        self._driver(machines)

    def joined(self, profile: LabProfile) -> JoinedGuests:
        """The hosts of ``profile`` as guests like these. Raises as `machines` and `template` do."""
        machines = self.machines()
        trace = Path(self.trace) if self.trace else None
        return JoinedGuests(profile, machines, self.template(self._driver(machines)), hops=self.hops, trace=trace)

    def _driver(self, machines: VmLab) -> Path | None:
        """The module if it is asked for, built for their kernel unless that was done with this source before."""
        return machines.build(driver_directory(), MODULE) if self.driver else None

    def template(self, driver: Path | None = None) -> Guest:
        """Template of all hosts; ``driver``: its module. Raises `ConfigError` for a missing file of a module."""
        own: list[str | Path] = []
        for module in self.modules:
            path = Path(module)
            if path.suffix == ".ko" and not path.is_file():
                raise ConfigError(f"there is no module {path}; give a file, or the name of one of the kernel's modules")
            own.append(path.resolve() if path.suffix == ".ko" else module)
        if driver is not None:
            own.append(driver)
        users = _USERS if self.rdma or self.driver else ()
        files = {"/usr/local/bin/ferrule": _FERRULE} if self.python else {}
        return Guest(
            script="",
            modules=[*NETWORK, *(["rdma_rxe"] if self.rdma else ()), *users, *own],
            python=[name for name in _PYTHON if find_spec(name)] if self.python else (),
            files=files,
            env={name: "1" for name, on in (("LAB_RXE", self.rdma), ("LAB_DRIVER", self.driver)) if on},
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            terminals=2,
        )


_FERRULE = '#!/bin/sh\nexec python3 -m ferrule "$@"\n'
