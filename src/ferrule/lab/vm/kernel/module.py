"""Build kernel modules: from a directory, or those that the distribution leaves out from its own kernel source."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.kmod.source import module_sources
from ferrule.lab.vm.image.cache import made_once
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.kernel.compiler import Compiler, compiler_for
from ferrule.lab.vm.kernel.kernel import Kernel, fetch_headers, fetch_source

FROM_SOURCE = {"siw": "drivers/infiniband/sw/siw"}
"""Modules that are in the kernel's source but not in the distribution's kernel: name to directory."""


@dataclass(frozen=True)
class ModuleBuilder:
    """Builds modules for ``kernel``, the same one only once: what is built is kept in ``cache``.

    ``archive``: where the kernel's headers and source are; ``compilers``: where the compiler is if this host has
    another one. Raises `LabError` where a module cannot be built.
    """

    kernel: Kernel
    archive: Archive
    compilers: Archive
    cache: Path

    def from_source(self, name: str) -> Path:
        """The file of the module ``name`` of `FROM_SOURCE`."""

        def sources(scratch: Path) -> dict[str, bytes]:
            return _extract(self.archive, self.kernel, FROM_SOURCE[name], scratch)

        return self._built(name, "", sources)

    def from_directory(self, source: Path, name: str, *, stands_in: bool = False) -> Path:
        """As `build_module`; ``source`` stays as it is."""
        files = module_sources(source)
        if "Makefile" not in files:
            raise LabError(f"{source} has no Makefile; a kernel module needs one with obj-m := {name}.o")
        digest = hashlib.sha256(repr((files, stands_in)).encode()).hexdigest()[:12]
        return self._built(name, f"-{digest}", lambda _: files, stands_in=stands_in)

    def _built(
        self, name: str, suffix: str, sources: Callable[[Path], Mapping[str, bytes]], *, stands_in: bool = False
    ) -> Path:
        """``sources`` gives the module's files, and may use an empty directory."""

        def make(target: Path) -> None:
            headers = fetch_headers(self.archive, self.kernel, self.cache / f"headers-{self.kernel.release}")
            compiler = compiler_for(headers, lambda: self.compilers, self.cache)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                source = Path(scratch) / "module"
                for file, data in sources(Path(scratch)).items():
                    (source / file).parent.mkdir(parents=True, exist_ok=True)
                    (source / file).write_bytes(data)
                built = build_module(source, name, headers, compiler, stands_in=stands_in)
                shutil.copyfile(built, target / f"{name}.ko")

        return made_once(self.cache / f"module-{name}-{self.kernel.release}{suffix}", make) / f"{name}.ko"


def build_module(source: Path, name: str, headers: Path, compiler: Compiler, *, stands_in: bool = False) -> Path:
    """Build the module in the directory ``source`` against a kernel's ``headers``; gives the path of ``name``.ko.

    ``source`` has a Makefile with ``obj-m``. ``stands_in``: it exports what one of the kernel's own modules does, and
    that one's users shall take it. Raises `LabError` with what the compiler said.
    """
    what = f"build the kernel module {name}"
    compiler.make(headers, source, what=what)
    if stands_in and take_checksums(source, (headers / "Module.symvers").read_text()):
        for pattern in ("*.ko", "*.mod.c", "*.mod.o", "Module.symvers"):
            for made in source.glob(pattern):
                made.unlink()
        compiler.make(headers, source, what=what)
    return source / f"{name}.ko"


def take_checksums(source: Path, symbols: str) -> int:
    """Give what the objects in ``source`` export the checksums that the kernel has for those names (``symbols`` is its
    Module.symvers); returns how many there are.

    They are made of the types of arguments with all that these refer to, private structures of the real module
    among it, so ours differ where kernels have CONFIG_MODVERSIONS. Without it there are none.
    """
    known = {fields[1]: fields[0] for line in symbols.splitlines() if len(fields := line.split()) > 1}
    count = 0
    for path in source.glob(".*.o.cmd"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            fields = line.split()
            if len(fields) == 3 and fields[0] == "#SYMVER" and fields[1] in known:
                lines[number] = f"#SYMVER {fields[1]} {known[fields[1]]}"
                count += 1
        path.write_text("\n".join(lines) + "\n")
    return count


def _extract(archive: Archive, kernel: Kernel, directory: str, scratch: Path) -> dict[str, bytes]:
    """The files of one directory of the source that ``kernel`` was built from."""
    compressed = fetch_source(archive, kernel, scratch)
    package = compressed.name.removesuffix(".tar.xz")
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
    # The kernel's own Makefile builds it only if the configuration says so.
    wanted = f"CONFIG_RDMA_{Path(directory).name.upper()} := m\n"
    return files | {"Makefile": wanted.encode() + files["Makefile"]}
