"""A tree of unpacked packages: programs in it run with its own loader and libraries, wherever it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.image.cache import made_once
from ferrule.lab.vm.image.commands import run
from ferrule.lab.vm.image.packages import Archive

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_PROGRAMS = ("usr/bin", "usr/sbin", "bin", "sbin")
_LOADER = "ld-linux-x86-64.so.2"


@dataclass(frozen=True)
class Tree:
    root: Path

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command that runs ``program`` of this tree on the host; it sees ``program`` as its own name."""
        libraries = self.root / LIBRARIES.lstrip("/")
        # QEMU needs a shared library of PulseAudio that lies in that one's own directory.
        search = ":".join(str(path) for path in (libraries, libraries / "pulseaudio", self.root / "usr" / "lib"))
        loader = str(libraries / _LOADER)
        return [loader, "--argv0", program, "--library-path", search, str(self.find(program)), *arguments]

    def run(self, program: str, *arguments: str, timeout: float) -> str:
        return run(self.command(program, *arguments), timeout=timeout, what=f"run {program} of the lab's packages")

    def find(self, program: str) -> Path:
        """The file of ``program``. Raises `LabError` if no package of this tree has it."""
        for directory in _PROGRAMS:
            path = self.root / directory / program
            if path.is_symlink() or path.exists():
                return self.resolve(path)
        raise LabError(f"none of the lab's packages has a program {program}; name the package that has it")

    def resolve(self, path: Path) -> Path:
        """``path`` with its symbolic links followed as in a root directory: absolute ones stay inside the tree."""
        for _ in range(40):
            if not path.is_symlink():
                return path
            target = path.readlink()
            path = self.root / str(target).lstrip("/") if target.is_absolute() else path.parent / target
        raise LabError(f"{path} is a symbolic link to itself")

    def files(self, leave_out: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Guest path and file of everything that is a regular file or a symbolic link, except below ``leave_out``."""
        skipped = tuple(f"{directory.strip('/')}/" for directory in leave_out)
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if (path.is_symlink() or path.is_file()) and not name.startswith(skipped):
                yield f"/{name}", path


def fetch_tree(archive: Archive, packages: Sequence[str], cache: Path) -> Tree:
    """These packages with all they depend on; fetched on the first call and kept below ``cache`` from then on."""
    names = sorted(set(packages))
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    root = cache / f"tree-{digest}"
    return Tree(made_once(root, lambda target: archive.unpack_with_dependencies(names, target)))
