"""The driver's source as it comes with this Ferrule, and what DKMS is told of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ferrule import __version__
from ferrule.errors import DriverError

MODULE = "ferrule_rdma"
PACKAGE = "ferrule-rdma"
"""Name of the package in DKMS, and of its directory in /usr/src."""

OLDEST_KERNEL = (6, 1)
"""It is built and tested from this one on (docs/driver.md)."""

_CONFIGS = ("CONFIG_INFINIBAND", "CONFIG_INFINIBAND_USER_ACCESS", "CONFIG_USB4")


@dataclass(frozen=True)
class Source:
    """``files``: by path in the source's directory, all that the module is built from."""

    files: dict[str, bytes]

    @property
    def version(self) -> str:
        """Of Ferrule, and a digest of the files, so that two sources never have the same."""
        told = {**self.files, "dkms.conf": dkms_conf("").encode()}
        digest = hashlib.sha256(repr(sorted(told.items())).encode()).hexdigest()
        return f"{__version__.partition('+')[0]}.{digest[:8]}"

    @property
    def tree(self) -> dict[str, bytes]:
        """The files of /usr/src/ferrule-rdma-VERSION."""
        return {**self.files, "dkms.conf": dkms_conf(self.version).encode()}


def read_source() -> Source:
    """The source in `driver_directory`. Raises `DriverError` where it is not."""
    place = driver_directory()
    files = module_sources(place)
    if not {"Makefile", "main.c"} <= files.keys():
        raise DriverError(f"{place} does not hold the driver's source (Makefile, main.c); reinstall ferrule")
    return Source(files)


def module_sources(directory: Path) -> dict[str, bytes]:
    """By path relative to ``directory``: all that a kernel module is built from there, and nothing that is built."""
    found = sorted(path for path in directory.rglob("*") if path.is_file() and _is_source(path))
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def dkms_conf(version: str) -> str:
    """See dkms(8). DKMS builds in a copy; a kernel that lacks something is skipped with its reason, no error.

    Without type information for debuggers, as that would need pahole."""
    make = "make -C ${kernel_source_dir} M=${dkms_tree}/${PACKAGE_NAME}/${PACKAGE_VERSION}/build"
    return f"""\
PACKAGE_NAME="{PACKAGE}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="{MODULE}"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="{make} FER_RELEASE=${{PACKAGE_VERSION}} CONFIG_DEBUG_INFO_BTF_MODULES= modules"
CLEAN="{make} clean"
BUILD_EXCLUSIVE_KERNEL="^(6\\.[1-9]|[7-9]\\.|[1-9][0-9]+\\.)"
BUILD_EXCLUSIVE_CONFIG="{" ".join(_CONFIGS)}"
AUTOINSTALL="yes"
"""


def driver_directory() -> Path:
    """Directory of the driver's source: in an installed package beside this file, else in the source tree.

    Raises `DriverError` where it is not."""
    beside = Path(__file__).parent / "kernel"
    tree = Path(__file__).parents[3] / "driver" / "kernel"
    for place in (beside, tree):
        if (place / "Makefile").is_file():
            return place
    raise DriverError(f"the driver's source is neither in {beside} nor in {tree}; reinstall ferrule")


def _is_source(path: Path) -> bool:
    if path.name in ("Makefile", "Kbuild"):
        return True
    return path.suffix in (".c", ".h", ".S") and not path.name.startswith(".") and not path.name.endswith(".mod.c")
