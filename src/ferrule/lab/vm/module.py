"""Build kernel modules that the distribution leaves out, from its own kernel source."""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.cache import made_once
from ferrule.lab.vm.commands import missing, run
from ferrule.lab.vm.kernel import Kernel, fetch_headers
from ferrule.lab.vm.packages import Archive

FROM_SOURCE = {"siw": "drivers/infiniband/sw/siw"}
"""Modules that are in the kernel's source but not in the distribution's kernel: name to directory."""

_BUILD_SECONDS = 600


def build_from_source(name: str, archive: Archive, kernel: Kernel, cache: Path) -> Path:
    """The file of the module ``name`` of `FROM_SOURCE`, built for ``kernel`` on the first call."""
    directory = FROM_SOURCE[name]

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            source = _extract(archive, kernel, directory, Path(scratch))
            built = build_module(source, name, fetch_headers(archive, kernel, cache / f"headers-{kernel.release}"))
            shutil.copyfile(built, target / f"{name}.ko")

    return made_once(cache / f"module-{name}-{kernel.release}", make) / f"{name}.ko"


def build_from_directory(source: Path, name: str, archive: Archive, kernel: Kernel, cache: Path) -> Path:
    """The file of the module ``name``, built for ``kernel`` from a copy of ``source``; again when that has changed."""
    files = sorted(
        path for path in source.iterdir() if path.suffix in (".c", ".h") or path.name in ("Makefile", "Kbuild")
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            for path in files:
                shutil.copyfile(path, Path(scratch) / path.name)
            built = build_module(
                Path(scratch), name, fetch_headers(archive, kernel, cache / f"headers-{kernel.release}")
            )
            shutil.copyfile(built, target / f"{name}.ko")

    return made_once(cache / f"module-{name}-{digest.hexdigest()[:12]}-{kernel.release}", make) / f"{name}.ko"


def build_module(source: Path, name: str, headers: Path) -> Path:
    """Build the module in the directory ``source`` against a kernel's ``headers``; gives the path of ``name``.ko.

    ``source`` has a Makefile with ``obj-m``. Raises `LabError` with the compiler's last words.
    """
    lacking = missing(["make", "gcc"])
    if ctypes.util.find_library("elf") is None:  # objtool of the headers is linked with it
        lacking.append("libelf")
    if lacking:
        raise LabError(
            f"building the kernel module {name} needs {', '.join(lacking)}, which this host lacks; "
            "as root: apt-get install gcc make libelf-dev"
        )
    # No type information for debuggers: it would need pahole.
    options = [f"-j{os.cpu_count() or 1}", f"M={source}", "CC=gcc", "CONFIG_DEBUG_INFO_BTF_MODULES="]
    command = ["make", "-s", "-C", str(headers), *options, "modules"]
    run(command, timeout=_BUILD_SECONDS, what=f"build the kernel module {name}", env={"MAKEFLAGS": ""})
    return source / f"{name}.ko"


def _extract(archive: Archive, kernel: Kernel, directory: str, scratch: Path) -> Path:
    """One directory of the source that ``kernel`` was built from."""
    series = ".".join(kernel.release.split(".")[:2])
    package = f"linux-source-{series}"
    try:
        archive.unpack([f"{package}={kernel.version}"], scratch)
    except LabError as error:
        raise LabError(
            f"the source of kernel {kernel.version} cannot be fetched; the archive may have a newer one by now, "
            f"then remove {kernel.directory.parent} and start afresh ({error})"
        ) from error
    compressed = scratch / "usr" / "src" / f"{package}.tar.xz"
    prefix = f"{package}/{directory}/"
    files: dict[str, bytes] = {}
    with tarfile.open(compressed, "r|xz") as source:
        for member in source:
            content = source.extractfile(member) if member.name.startswith(prefix) else None
            if content is not None:
                files[member.name.removeprefix(prefix)] = content.read()
            elif files:
                break  # the rest is a hundred megabytes of other drivers
    if "Makefile" not in files:
        raise LabError(f"{package} {kernel.version} has no module in {directory}")
    place = scratch / "module"
    place.mkdir()
    for name, data in files.items():
        (place / name).write_bytes(data)
    # The kernel's own Makefile builds it only if the configuration says so.
    makefile = place / "Makefile"
    makefile.write_text(f"CONFIG_RDMA_{Path(directory).name.upper()} := m\n{makefile.read_text()}")
    return place
