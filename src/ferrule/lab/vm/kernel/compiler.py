"""The compiler that a kernel was built with: the host's own, or one out of packages, in a root directory of its own."""

from __future__ import annotations

import ctypes.util
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.image.commands import missing, run
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.image.tree import Tree, fetch_tree

_PACKAGES = (
    *("make", "libc6-dev", "xz-utils", "kmod", "coreutils", "bash", "dash", "sed", "gawk", "grep", "findutils"),
    *("perl-base", "libelf-dev"),
)
_KERNEL_PACKAGES = ("bc", "bison", "diffutils", "flex")
_SECONDS = 600


@dataclass(frozen=True)
class Compiler:
    """``name``: what make calls it; ``tree``: where it lies, or None for the host."""

    name: str
    tree: Tree | None = None

    def make(self, headers: Path, source: Path, *, what: str) -> None:
        """Build the module in ``source`` against ``headers``. Raises `LabError` with what the compiler said."""
        # No type information for debuggers: it would need pahole.
        options = [f"-j{os.cpu_count() or 1}", f"M={source}", f"CC={self.name}", "CONFIG_DEBUG_INFO_BTF_MODULES="]
        command = ["make", "-s", "-C", str(headers), *options, "modules"]
        unpacked = headers.parents[2]  # with all packages of the headers, which refer to each other
        self._run(command, [unpacked, source], _SECONDS, what)

    def make_kernel(
        self, source: Path, arguments: Sequence[str], shown: Sequence[Path], *, timeout: float, what: str
    ) -> None:
        """Run make in a kernel's ``source`` with these targets and variables, when nothing else wants the processors.

        ``shown``: directories that it reads and writes.
        """
        tools = [f"CC={self.name}", f"HOSTCC={self.name}"]
        jobs = f"-j{os.cpu_count() or 1}"
        self._run(["nice", "make", "-s", "-C", str(source), jobs, *tools, *arguments], shown, timeout, what)

    def _run(self, command: Sequence[str], shown: Sequence[Path], timeout: float, what: str) -> None:
        if self.tree is None:
            run(command, timeout=timeout, what=what, env={"MAKEFLAGS": ""})
        else:
            run(_inside(self.tree.root, shown, command), timeout=timeout, what=what)


def compiler_for(headers: Path, archive: Callable[[], Archive], cache: Path) -> Compiler:
    """The one that a kernel's ``headers`` ask for. If the host has another one, it is fetched from ``archive``.

    Raises `LabError` where the host has none and may not enter another root directory either.
    """
    match = re.search(r"gcc-(\d+)", (headers / ".kernelvariables").read_text())
    if match is None:
        raise LabError(f"{headers} does not say which compiler its kernel was built with")
    name = match[0]
    elf = ctypes.util.find_library("elf")  # the shared library that objtool of the headers needs
    if not missing(["make"]) and elf and (found := _installed(name)):
        return Compiler(found)
    return _from_packages(name, (), archive, cache, f"building modules for {headers.name}")


def kernel_compiler(archive: Archive, cache: Path) -> Compiler:
    """One for a whole kernel, with what else that takes: the host's own if it is that of ``archive``, else fetched."""
    name = next((each for each in archive.depends("gcc") if re.fullmatch(r"gcc-\d+", each)), "gcc")
    elf = Path("/usr/include/libelf.h").exists()
    if elf and not missing(["make", "bc", "bison", "flex"]) and (found := _installed(name)):
        return Compiler(found)
    return _from_packages(name, _KERNEL_PACKAGES, lambda: archive, cache, "compiling a kernel")


def _from_packages(
    name: str, more: Sequence[str], archive: Callable[[], Archive], cache: Path, purpose: str
) -> Compiler:
    if missing(["unshare", "chroot"]) or not _may_enter():
        needed = ["make", "libelf-dev", *more]
        raise LabError(
            f"{purpose} needs {name}, {', '.join(needed)}; this host lacks them, and a compiler "
            f"out of packages needs root or user namespaces; as root: apt-get install {name} {' '.join(needed)}"
        )
    tree = fetch_tree(archive(), [name, *_PACKAGES, *more], cache)
    awk = tree.root / "usr" / "bin" / "awk"  # a symbolic link that a package's script would make
    with suppress(FileExistsError):  # another process made it
        awk.symlink_to("gawk")
    return Compiler(name, tree)


def _installed(name: str) -> str | None:
    """The host's ``gcc-N``, or its gcc if that is this version."""
    if shutil.which(name):
        return name
    if shutil.which("gcc"):
        version = run(["gcc", "-dumpversion"], timeout=30, what="ask the compiler").strip().split(".")[0]
        if name == f"gcc-{version}":
            return "gcc"
    return None


def _unshare() -> list[str]:
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    # Processes of its own, so that all of make's end with the first one, which ends with us.
    return ["unshare", *rights, "--mount", "--pid", "--fork", "--kill-child"]


def _may_enter() -> bool:
    try:
        run([*_unshare(), "true"], timeout=30, what="try namespaces")
    except LabError:
        return False
    return True


def _inside(root: Path, shown: Sequence[Path], command: Sequence[str]) -> list[str]:
    """``command`` with ``root`` as its root directory, in which the directories ``shown`` have their own paths."""
    lines = ["set -e"]
    for path in (*shown, Path("/dev"), Path("/proc")):
        place = f"{root}{path}"
        lines += [f"mkdir -p {shlex.quote(place)}", f"mount --rbind {shlex.quote(str(path))} {shlex.quote(place)}"]
    environment = "PATH=/usr/sbin:/usr/bin LC_ALL=C MAKEFLAGS= DEB_BUILD_ARCH=amd64 DEB_HOST_ARCH=amd64 TMPDIR=/tmp"
    lines += [f"mkdir -p {shlex.quote(str(root))}/tmp"]
    lines += [f"exec chroot {shlex.quote(str(root))} env -i {environment} {shlex.join(command)} CROSS_COMPILE="]
    return [*_unshare(), "bash", "-c", "\n".join(lines)]
