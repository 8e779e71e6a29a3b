"""Kernels of our own that check themselves and their modules, compiled from the distribution's kernel source."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.image.cache import made_once
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.kernel.compiler import Compiler, kernel_compiler
from ferrule.lab.vm.kernel.kernel import Kernel, fetch_source, own_headers

DEBUG_KERNELS = {
    "debug": "errors in the use of memory, locks, timers and DMA, and leaks (KASAN, lockdep, kmemleak and others)",
    "debug-kcsan": "data races (KCSAN)",
}
"""Debug kernels, and the errors that each looks for; configured by ``kernels/base.config`` and the file of its name."""

_CONFIGURATIONS = Path(__file__).with_name("kernels")
_CONFIGURE_SECONDS = 600
_COMPILE_SECONDS = 4 * 3600
_EARLY = ("KASAN_SANITIZE_string.o=n",)
"""As QEMU starts it, the kernel calls memcmp before it has mapped what KASAN looks into."""
_SYMBOL = re.compile(r"(CONFIG_\w+)=(.*)")

_NOT_UNPACKED = re.compile(
    r"(Documentation|LICENSES|samples|sound|arch/(?!x86/)\w+|drivers/(gpu|iio|infiniband/hw|media|net/(can|ethernet|usb"
    r"|wireless)|scsi|staging|usb)|fs/(bcachefs|btrfs|ceph|ext4|f2fs|gfs2|nfs|nfsd|ntfs3|ocfs2|smb|xfs)"
    r"|net/(bluetooth|mac80211|mptcp|openvswitch|rxrpc|sctp|smc|sunrpc|tipc|wireless))/"
)
"""Pattern of files that our configurations never compile: two thirds of the source."""
_OF_THE_BUILD = re.compile(r"(.*/)?(Kconfig|Makefile|Kbuild)[^/]*")
_OF_HEADERS = re.compile(r"(include|scripts|tools)/|arch/x86/.*\.(h|lds|S|sh|tbl|awk)|Module\.symvers|\.config")
_NOT_OF_HEADERS = re.compile(r".*\.(o|a|cmd|d)|tools/(?!include/|objtool/objtool$|scripts/).*")


def debug_kernel(
    name: str,
    stock: Kernel,
    archive: Archive,
    compilers: Archive,
    cache: Path,
    depmod: Callable[[Sequence[str]], object],
) -> Kernel:
    """The kernel ``name`` of `DEBUG_KERNELS`, of the version of ``stock``; compiled on the first call: half an hour.

    ``archive``: where ``stock`` is from; ``compilers``: where the compiler is if this host has another one.
    ``depmod``: see `ferrule.lab.vm.kernel.kernel.fetch_kernel`.
    """
    wanted = configuration(name)
    digest = hashlib.sha256(f"{stock.version}\n{wanted}".encode()).hexdigest()[:8]

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            source = Path(scratch) / "source"
            unpack_source(fetch_source(archive, stock, Path(scratch)), source)
            (source / "lab.config").write_text(wanted)
            release = compile_kernel(source, kernel_compiler(compilers, cache), f"-{name}-{digest}", target)
        depmod(["-b", str(target / "usr"), release])
        (target / "version").write_text(stock.version)

    made_once(cache / f"kernel-{name}-{digest}", make, timeout=_COMPILE_SECONDS)
    return Kernel.at(cache / f"kernel-{name}-{digest}")


def configuration(name: str) -> str:
    """The lines of a kernel's configuration that are not as ``make allnoconfig`` has them."""
    return "".join((_CONFIGURATIONS / f"{part}.config").read_text() for part in ("base", name))


def refused(wanted: str, given: str) -> list[str]:
    """Options of the configuration ``wanted`` that are otherwise in ``given``, which make has written."""
    have = dict(_SYMBOL.findall(given))
    return [f"{symbol}={value}" for symbol, value in _SYMBOL.findall(wanted) if have.get(symbol, "n") != value]


def unpack_source(archive: Path, target: Path) -> None:
    """Unpack what we compile of a kernel's source, and what describes the rest of it."""
    with tarfile.open(archive, "r|xz") as source:
        for member in source:
            name = member.name.partition("/")[2]
            if _NOT_UNPACKED.match(name) and not _OF_THE_BUILD.fullmatch(name):
                continue
            path = target / name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.issym():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(member.linkname)
            elif (content := source.extractfile(member)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
                path.chmod(member.mode & 0o755)


def compile_kernel(source: Path, compiler: Compiler, suffix: str, target: Path) -> str:
    """Compile what ``lab.config`` in ``source`` asks for, and put kernel, modules and headers into ``target`` as
    packages have them; returns its release, which ends in ``suffix``. Objects that are there already are used."""
    what = f"compile the kernel{suffix}"
    shown = [source, target]
    named = [f"LOCALVERSION={suffix}", "KBUILD_BUILD_USER=ferrule", "KBUILD_BUILD_HOST=lab", *_EARLY]
    configure = [*named, f"KCONFIG_ALLCONFIG={source}/lab.config", "allnoconfig"]
    compiler.make_kernel(source, configure, shown, timeout=_CONFIGURE_SECONDS, what=what)
    lacking = refused((source / "lab.config").read_text(), (source / ".config").read_text())
    if lacking:
        raise LabError(f"this kernel's source knows these otherwise, mend {_CONFIGURATIONS}: {', '.join(lacking)}")
    compiler.make_kernel(source, [*named, "vmlinux", "modules"], shown, timeout=_COMPILE_SECONDS, what=what)
    install = [*named, f"INSTALL_MOD_PATH={target}/usr", "DEPMOD=true", "modules_install"]
    compiler.make_kernel(source, install, shown, timeout=_CONFIGURE_SECONDS, what=what)
    release = (source / "include" / "config" / "kernel.release").read_text().strip()
    (target / "usr" / "lib" / "modules" / release / "build").unlink()
    shutil.copyfile(source / "vmlinux", target / "vmlinux")
    _keep_headers(source, own_headers(target, release))
    (own_headers(target, release) / ".kernelvariables").write_text(f"# compiled with {compiler.name}\n")
    return release


def _keep_headers(source: Path, target: Path) -> None:
    """Keep the headers that modules are built against."""
    for path in sorted(source.rglob("*")):
        name = str(path.relative_to(source))
        wanted = _OF_HEADERS.match(name) or _OF_THE_BUILD.fullmatch(name)
        if path.is_dir() or not wanted or _NOT_OF_HEADERS.fullmatch(name):
            continue
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place, follow_symlinks=False)
