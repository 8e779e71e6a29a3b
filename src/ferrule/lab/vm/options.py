"""What a lab of virtual machines is made of, as the commands take it and hand it on to the process that holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ferrule.errors import ConfigError
from ferrule.lab.vm.image.sources import host_release, newest_suite
from ferrule.lab.vm.joined import NETWORK, TOOLS
from ferrule.lab.vm.kernel.debug import DEBUG_KERNELS
from ferrule.lab.vm.lab import RDMA, VmLab
from ferrule.lab.vm.machine.guest import Guest

KERNELS = {"6.1": "bookworm", "6.12": "trixie", "newest": ""}
"""Series of stock kernels and the Debian suites that have them; the newest stable one is in that of `newest_suite`."""

_PYTHON = (
    *("numpy", "ferrule", "typer", "click", "shellingham", "annotated_doc", "typing_extensions"),
    *("rich", "markdown_it", "mdurl", "pygments"),
)
"""What ``ferrule`` needs in a guest to look at its links and at the machine, with any version of its dependencies."""

_SOFT_ROCE = ("rdma_rxe", "ib_uverbs", "rdma_ucm")
"""Newer kernels leave the last two, by which programs reach a device, to udev."""


def machines_with(kernel: str, packages: Sequence[str] = TOOLS) -> VmLab:
    """Where guests with this kernel boot: one of `KERNELS` or of `DEBUG_KERNELS`, or that of a Debian suite.

    Raises `ConfigError` for what names no kernel, `LabError` where no guest can run.
    """
    if kernel not in KERNELS and not re.fullmatch(r"[a-z]+(-backports)?", kernel) and kernel not in DEBUG_KERNELS:
        names = ", ".join([*KERNELS, *DEBUG_KERNELS])
        raise ConfigError(f"there is no kernel {kernel!r}; choose {names}, or a Debian suite (trixie-backports)")
    return VmLab(packages=packages, suite=KERNELS.get(kernel, kernel) or newest_suite(host_release()))


@dataclass(frozen=True)
class VmOptions:
    """``kernel``: see `machines_with`. ``modules``: names, or paths of ``.ko`` files. ``packages``:
    Debian packages beside those that labs have. ``rdma``: soft-RoCE on each cable, with its tools. ``python``: guests
    can run ``ferrule``. ``trace``: a file for what crosses the cables, or empty. ``hops``: rings of each controller."""

    kernel: str = "newest"
    cpus: int = 1
    memory_mb: int = 1024
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    rdma: bool = False
    python: bool = False
    trace: str = ""
    hops: int = 12

    def machines(self) -> VmLab:
        """Where they boot. Raises `ConfigError` for what names no kernel, `LabError` where no guest can run."""
        packages = dict.fromkeys([*TOOLS, *(RDMA if self.rdma else ()), *self.packages])
        return machines_with(self.kernel, tuple(packages))

    def template(self) -> Guest:
        """What all hosts have in common. Raises `ConfigError` for a module's file that is not there."""
        own: list[str | Path] = []
        for module in self.modules:
            path = Path(module)
            if path.suffix == ".ko" and not path.is_file():
                raise ConfigError(f"there is no module {path}; give a file, or the name of one of the kernel's modules")
            own.append(path.resolve() if path.suffix == ".ko" else module)
        files = {"/usr/local/bin/ferrule": _FERRULE} if self.python else {}
        return Guest(
            script="",
            modules=[*NETWORK, *(_SOFT_ROCE if self.rdma else ()), *own],
            python=[name for name in _PYTHON if find_spec(name)] if self.python else (),
            files=files,
            env={"LAB_RXE": "1"} if self.rdma else {},
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            terminals=2,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        for name in ("modules", "packages"):
            values[name] = tuple(values[name])
        return cls(**values)


_FERRULE = '#!/bin/sh\nexec python3 -m ferrule "$@"\n'
