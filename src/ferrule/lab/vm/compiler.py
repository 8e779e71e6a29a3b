"""The compiler that a kernel was built with: the host's own, or one out of packages, in a root directory of its own."""

from __future__ import annotations

import ctypes.util
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.commands import missing, run
from ferrule.lab.vm.packages import Archive
from ferrule.lab.vm.tree import Tree, fetch_tree

_PACKAGES = (
    *("make", "libc6-dev", "xz-utils", "kmod", "coreutils", "bash", "dash", "sed", "gawk", "grep", "findutils"),
    *("perl-base", "libelf-dev"),
)
_SECONDS = 600


@dataclass(frozen=True)
class Compiler:
    """``name``: what make calls it; ``tree``: where it lies, or None for the host."""

    name: str
    tree: Tree | None = None

    def make(self, headers: Path, source: Path, *, what: str) -> None:
        """Build the module in ``source`` against ``headers``. Raises `LabError` with the compiler's last words."""
        # No type information for debuggers: it would need pahole.
        options = [f"-j{os.cpu_count() or 1}", f"M={source}", f"CC={self.name}", "CONFIG_DEBUG_INFO_BTF_MODULES="]
        command = ["make", "-s", "-C", str(headers), *options, "modules"]
        if self.tree is None:
            run(command, timeout=_SECONDS, what=what, env={"MAKEFLAGS": ""})
            return
        run(_inside(self.tree.root, [_top(headers), source], command), timeout=_SECONDS, what=what)


def compiler_for(headers: Path, archive: Callable[[], Archive], cache: Path) -> Compiler:
    """The one that a kernel's ``headers`` ask for. If the host has another one, it is fetched from ``archive``.

    Raises `LabError` where the host has none and may not enter another root directory either.
    """
    match = re.search(r"gcc-(\d+)", (headers / ".kernelvariables").read_text())
    if match is None:
        raise LabError(f"{headers} does not say which compiler its kernel was built with")
    name = match[0]
    elf = ctypes.util.find_library("elf")  # objtool of the headers is linked with it
    if not missing(["make"]) and elf and (found := _installed(name)):
        return Compiler(found)
    if missing(["unshare", "chroot"]) or not _may_enter():
        raise LabError(
            f"building modules for {headers.name} needs {name}, make and libelf; this host lacks them, and a compiler "
            f"out of packages needs root or user namespaces; as root: apt-get install {name} make libelf-dev"
        )
    tree = fetch_tree(archive(), [name, *_PACKAGES], cache)
    awk = tree.root / "usr" / "bin" / "awk"  # a link that a package's script would make
    if not awk.is_symlink():
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
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


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


def _top(headers: Path) -> Path:
    """What the headers' packages were unpacked into: they refer to each other."""
    return headers.parents[2]
