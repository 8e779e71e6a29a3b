"""A Debian kernel, its modules and headers, from the archive into a cache directory."""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from ferrule.errors import LabError
from ferrule.lab.vm.image.cache import made_once
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.kernel.bzimage import kernel_proper

_IMAGE = "linux-image-amd64"  # always depends on the suite's newest kernel

_IMAGE_PARTS = re.compile(r"linux-(image|binary|modules|base)-\d")
_HEADER_PARTS = re.compile(r"linux-(headers|kbuild|compiler)-")
_PROPER = "vmlinux"
_COMPRESSED = re.compile(r"\.(xz|zst|gz)$")


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel. ``release``: what ``uname -r`` says; ``version``: its Debian version, such as 6.1.176-1."""

    directory: Path
    release: str
    version: str

    @classmethod
    def at(cls, directory: Path) -> Self:
        """The one that lies in ``directory``."""
        return cls(directory, _release(directory), (directory / "version").read_text())

    @property
    def image(self) -> Path:
        """The file that boots: uncompressed where that could be had."""
        places = (
            self.directory / _PROPER,
            self.directory / "boot" / f"vmlinuz-{self.release}",
            self.modules / "vmlinuz",
        )
        return next(place for place in places if place.exists())

    @property
    def modules(self) -> Path:
        return self.directory / "usr" / "lib" / "modules" / self.release

    def has_module(self, name: str) -> bool:
        """Whether ``name`` is one of its modules, or compiled in."""
        return _plain(name) in self._files or _plain(name) in self._builtin

    def module_files(self, names: Iterable[str]) -> list[Path]:
        """Paths, relative to `modules`, of these modules and all that they need; nothing for what is compiled in.

        Raises `LabError` for a name that the kernel does not have.
        """
        wanted: dict[str, None] = {}
        for name in names:
            file = self._files.get(_plain(name))
            if file is not None:
                wanted |= dict.fromkeys([file, *self._dependencies[file]])
                for soft in self._soft.get(_plain(name), ()):
                    wanted |= dict.fromkeys(str(path) for path in self.module_files([soft]) if self.has_module(soft))
            elif _plain(name) not in self._builtin:
                raise LabError(f"kernel {self.release} has no module {name}")
        return [Path(file) for file in wanted]

    def module_data(self, file: Path) -> bytes:
        """The module at this path relative to `modules`, decompressed."""
        path = self.modules / file
        if path.suffix == ".xz":
            return lzma.decompress(path.read_bytes())
        if path.suffix in (".zst", ".gz"):
            raise LabError(f"{path} is compressed in a way that the lab does not read ({path.suffix})")
        return path.read_bytes()

    @cached_property
    def _dependencies(self) -> dict[str, list[str]]:
        lines = (self.modules / "modules.dep").read_text().splitlines()
        return {file: needs.split() for file, _, needs in (line.partition(":") for line in lines)}

    @cached_property
    def _files(self) -> dict[str, str]:
        return {module_name(file): file for file in self._dependencies}

    @cached_property
    def _builtin(self) -> set[str]:
        return {module_name(line) for line in (self.modules / "modules.builtin").read_text().split()}

    @cached_property
    def _soft(self) -> dict[str, list[str]]:
        """Modules that another one asks for by name before or after itself: `softdep NAME pre: A B post: C`."""
        found: dict[str, list[str]] = {}
        for line in (self.modules / "modules.softdep").read_text().splitlines():
            fields = line.split()
            if fields[:1] == ["softdep"]:
                names = [word for word in fields[2:] if not word.endswith(":")]
                found.setdefault(_plain(fields[1]), []).extend(name for name in names if self.has_module(name))
        return found


def fetch_kernel(archive: Archive, directory: Path, depmod: Callable[[Sequence[str]], object]) -> Kernel:
    """The suite's newest kernel; fetched into ``directory`` on the first call and kept from then on.

    ``depmod`` runs that program with the given arguments: packages leave it to their scripts, which we do not run.
    """

    def make(target: Path) -> None:
        packages = _closure(archive, _IMAGE, _IMAGE_PARTS)
        archive.unpack(packages, target)
        release = _release(target)
        proper = kernel_proper(Kernel(target, release, "").image.read_bytes())
        if proper is not None:
            (target / _PROPER).write_bytes(proper)
        depmod(["-b", str(target / "usr"), release])
        image = next(name for name in packages if name.endswith(release))
        (target / "version").write_text(archive.version(image))

    made_once(directory, make)
    return Kernel.at(directory)


def fetch_headers(archive: Archive, kernel: Kernel, directory: Path) -> Path:
    """The directory that modules for ``kernel`` are built against; fetched below ``directory`` if it is nowhere yet."""
    if own_headers(kernel.directory, kernel.release).is_dir():
        return own_headers(kernel.directory, kernel.release)
    package = f"linux-headers-{kernel.release}"

    def make(target: Path) -> None:
        archive.unpack(_closure(archive, package, _HEADER_PARTS), target)
        makefile = own_headers(target, kernel.release) / "Makefile"
        # The packages expect to lie in the root directory.
        makefile.write_text(re.sub(r"(?<=[ =:])/usr/(src|lib)/", rf"{directory}/usr/\1/", makefile.read_text()))

    made_once(directory, make)
    return own_headers(directory, kernel.release)


def own_headers(directory: Path, release: str) -> Path:
    """Directory of the headers of the kernel ``release`` among what was unpacked into ``directory``."""
    return directory / "usr" / "src" / f"linux-headers-{release}"


def fetch_source(archive: Archive, kernel: Kernel, into: Path) -> Path:
    """The archive file with the source that the distribution's ``kernel`` was built from, fetched below ``into``."""
    package = f"linux-source-{'.'.join(kernel.release.split('.')[:2])}"
    try:
        archive.unpack([f"{package}={kernel.version}"], into)
    except LabError as error:
        raise LabError(
            f"the source of kernel {kernel.version} cannot be fetched; the archive may have a newer one by now, "
            f"then remove {kernel.directory.parent} and start afresh ({error})"
        ) from error
    return into / "usr" / "src" / f"{package}.tar.xz"


def module_name(file: str) -> str:
    """``kernel/fs/nfs-common.ko.xz`` is the module ``nfs_common``."""
    return _plain(Path(file).name.split(".")[0])


def uncompressed(file: Path) -> str:
    return _COMPRESSED.sub("", str(file))


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _closure(archive: Archive, package: str, parts: re.Pattern[str]) -> list[str]:
    """``package`` and those parts of the kernel that it depends on, without packages that only name others."""
    found: list[str] = []
    waiting = [package]
    while waiting:
        name = waiting.pop()
        found.append(name)
        waiting += [need for need in archive.depends(name) if parts.match(need) and need not in found + waiting]
    return [name for name in found if name != _IMAGE]


def _release(directory: Path) -> str:
    releases = [path.name for path in (directory / "usr" / "lib" / "modules").iterdir() if path.is_dir()]
    if len(releases) != 1:
        raise LabError(f"{directory} holds {len(releases)} kernels ({', '.join(releases)}); remove it")
    return releases[0]
