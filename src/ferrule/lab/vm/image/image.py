"""The guest's first and only file system: a cpio archive made of packages, modules, Python and files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from os.path import normpath
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ferrule.errors import LabError
from ferrule.lab.vm.image.cpio import CpioWriter, guest_path
from ferrule.lab.vm.image.elf import read_elf
from ferrule.lab.vm.image.tree import LIBRARIES, Tree
from ferrule.lab.vm.kernel.kernel import Kernel, module_name, uncompressed

_HOST_LIBRARIES = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/lib",
    "/lib",
)
_LEFT_OUT = ("usr/share", "usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/x86_64-linux-gnu/gconv", "var", "etc/apt")
_DIRECTORIES = ("/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/results", "/etc", "/lab", "/var/tmp")


class Image(CpioWriter):
    """Collects a file system in ``out``; `close` ends it. Where two things have one path, the first one added stays."""

    def __init__(self, out: BinaryIO, tree: Tree) -> None:
        super().__init__(out)
        self._tree = tree
        for directory in _DIRECTORIES:
            self.directory(directory)
        self.character_device("/dev/console", 5, 1)
        self.character_device("/dev/null", 1, 3)

    def add_tree(self) -> None:
        """Everything of the packages but documentation, and busybox's programs under the names that are still free."""
        for path, file in self._tree.files(_LEFT_OUT):
            if file.is_symlink():
                self.symlink(path, str(file.readlink()))
            else:
                self.file(path, file.read_bytes(), mode=file.stat().st_mode & 0o7777)
        for applet in self._tree.run("busybox", "--list", timeout=30).split():
            if f"/usr/sbin/{applet}" not in self:
                self.symlink(f"/usr/bin/{applet}", "busybox")

    def add_files(self, files: Iterable[tuple[str, Path]]) -> None:
        """Host files under guest paths, with the shared libraries that programs among them need."""
        entries = list(files)
        for path, file in entries:
            status = file.stat()
            self.file(path, file.read_bytes(), mode=status.st_mode & 0o7777, mtime=status.st_mtime)
        for path, file in entries:
            self._add_libraries(path, file)

    def _add_libraries(self, path: str, file: Path) -> None:
        elf = read_elf(file)
        for name in elf.needed if elf else ():
            if f"{LIBRARIES}/{name}" in self:
                continue
            for directory in elf.search if elf else ():
                place = directory.replace("$ORIGIN", str(PurePosixPath(path).parent))
                source = Path(directory.replace("$ORIGIN", str(file.parent))) / name
                if source.is_file():
                    self._add_library(guest_path(normpath(f"{place}/{name}")), source)
                    break
            else:
                source = self._find_library(name, file)
                self._add_library(f"{LIBRARIES}/{name}", source)

    def _add_library(self, path: str, source: Path) -> None:
        if path not in self:
            self.file(path, source.read_bytes(), mode=0o755)
            self._add_libraries(path, source)

    def _find_library(self, name: str, wanted_by: Path) -> Path:
        for directory in _HOST_LIBRARIES:
            if (Path(directory) / name).is_file():
                return Path(directory) / name
        raise LabError(f"{wanted_by} needs the library {name}, which is in none of {', '.join(_HOST_LIBRARIES)}")

    def add_modules(self, kernel: Kernel, names: Sequence[str], own: Mapping[str, Path]) -> None:
        """The kernel's modules called ``names`` and what they need; ``own``: further modules by name, our own builds.

        depmod runs over just these, so that modprobe in the guest knows their dependencies and aliases.
        """
        with tempfile.TemporaryDirectory() as scratch:
            top = Path(scratch) / "lib" / "modules" / kernel.release
            needed = [need for path in own.values() for need in _needs(path)]
            for file in kernel.module_files(name for name in [*names, *needed] if name not in own):
                place = top / uncompressed(file)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(kernel.module_data(file))
            for name, path in own.items():
                (top / "updates").mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, top / "updates" / f"{name}.ko")
            for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
                shutil.copyfile(kernel.modules / name, top / name)
            self._tree.run("depmod", "-b", scratch, kernel.release, timeout=60)
            for path in sorted(top.rglob("*")):
                if path.is_file():
                    self.file(f"/lib/modules/{kernel.release}/{path.relative_to(top)}", path.read_bytes())


def _needs(module: Path) -> list[str]:
    """Direct dependencies of a built module, as it states them."""
    data = module.read_bytes()
    start = data.find(b"\0depends=")
    if start < 0:
        return []
    value = data[start + len(b"\0depends=") : data.index(b"\0", start + 1)].decode()
    return [module_name(name) for name in value.split(",") if name]
