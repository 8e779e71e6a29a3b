"""The lab itself: puts kernel, packages, emulator and guests together."""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from ferrule.errors import GuestError, LabError
from ferrule.lab.vm.image.cache import default_cache
from ferrule.lab.vm.image.commands import missing
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.image.sources import base_suite, host_release, host_sources, newest_suite, suite_sources
from ferrule.lab.vm.image.tree import Tree, fetch_tree
from ferrule.lab.vm.kernel.debug import DEBUG_KERNELS, debug_kernel
from ferrule.lab.vm.kernel.kernel import Kernel, fetch_kernel, module_name
from ferrule.lab.vm.kernel.kernel_log import stood_still
from ferrule.lab.vm.kernel.module import FROM_SOURCE, ModuleBuilder
from ferrule.lab.vm.machine.accel import choose_accelerator
from ferrule.lab.vm.machine.guest import Guest, Result, write_image
from ferrule.lab.vm.machine.process import Machine
from ferrule.lab.vm.machine.qemu import EXACT, VFIO_USER_SINCE, Accelerator, Qemu, find_qemu
from ferrule.lab.vm.machine.running import RunningGuest

log = logging.getLogger(__name__)

_BASE = ("bash", "busybox-static", "iproute2", "kmod")

RDMA = ("ibverbs-providers", "ibverbs-utils", "librdmacm1", "perftest", "rdmacm-utils")
"""Packages that a guest needs to use and look at RDMA devices; ``ip`` and ``rdma`` are always there."""


class VmLab:
    """Boots guests. Everything that they need is fetched by package name on first use and kept in `default_cache`;
    nothing is installed and no rights are needed.

    ``packages``: whose programs and libraries guests have, beside bash, busybox, iproute2 and kmod; ``programs``: the
    release that these are taken from; default: the host's own. ``suite``: the release that the kernel is taken from,
    such as ``trixie-backports``; default: the host's own. Or one of `DEBUG_KERNELS`: the newest stable kernel, compiled
    here on first use (half an hour) so that it checks itself. Raises `LabError` where this host cannot run guests.
    """

    def __init__(
        self,
        *,
        packages: Sequence[str] = RDMA,
        programs: str | None = None,
        suite: str | None = None,
    ) -> None:
        reason = obstacle()
        if reason is not None:
            raise LabError(reason)
        self._cache = default_cache().resolve()
        self._cache.mkdir(parents=True, exist_ok=True)
        self._packages = (*_BASE, *packages)
        self._release = host_release()
        self._programs = programs or self._release
        self._debug = suite if suite in DEBUG_KERNELS else None
        self._suite = newest_suite(self._release) if self._debug else suite or self._release

    def prepare(self) -> None:
        """Fetch all that is needed to boot, so that later calls need no network. Seconds to a minute the first time."""
        self.kernel, self.tree, self.qemu, self.accelerator  # noqa: B018 (each is made when first looked at)

    def boot(self, guest: Guest) -> RunningGuest:
        """Start ``guest``; several may run at a time. It is killed when the calling thread ends."""
        own = self._own_modules(guest)
        accelerator = EXACT if guest.exact_time else self.accelerator
        machine = Machine(self.qemu, accelerator, self.kernel.image, guest)
        try:
            write_image(guest, machine.image, self.tree, self.kernel, own)
            machine.start()
        except BaseException:
            machine.close()
            raise
        return RunningGuest(machine, guest)

    def run(self, guest: Guest, timeout: float) -> Result:
        """Boot ``guest`` and wait at most ``timeout`` seconds for its result; see `RunningGuest.wait`. One whose
        processors `stood_still` is booted once more."""
        try:
            return self._run(guest, timeout)
        except GuestError as error:
            own = [module_name(module.name) for module in guest.modules if isinstance(module, Path)]
            if not stood_still(error.console, own):
                raise
            log.warning("%s is booted once more, since a processor of it stood still:\n%s", guest.name, error.console)
        return self._run(guest, timeout)

    def _run(self, guest: Guest, timeout: float) -> Result:
        with self.boot(guest) as running:
            return running.wait(timeout)

    def build(self, source: Path, name: str, *, stands_in: bool = False) -> Path:
        """The module ``name`` (for `Guest.modules`), built for `kernel` from the directory ``source``, whose Makefile
        has ``obj-m``. The build is kept until a file of ``source`` changes. ``stands_in``: see
        `ferrule.lab.vm.kernel.module.build_module`. Raises `LabError` if it fails."""
        return self._builder.from_directory(source, name, stands_in=stands_in)

    @cached_property
    def kernel(self) -> Kernel:
        def depmod(arguments: Sequence[str]) -> object:
            return self.tree.run("depmod", *arguments, timeout=120)

        archive, cache = self._archive(self._suite), self._cache / self._suite
        stock = fetch_kernel(archive, cache / "kernel", depmod)
        if self._debug is None:
            return stock
        compilers = self._archive(base_suite(self._suite))
        return debug_kernel(self._debug, stock, archive, compilers, cache, depmod)

    @cached_property
    def _builder(self) -> ModuleBuilder:
        compilers = self._archive(base_suite(self._suite))
        return ModuleBuilder(self.kernel, self._archive(self._suite), compilers, self._cache / self._suite)

    @cached_property
    def tree(self) -> Tree:
        """The packages that guests have."""
        return fetch_tree(self._archive(self._programs), self._packages, self._cache / self._programs)

    @cached_property
    def qemu(self) -> Qemu:
        """One that has devices which another process serves."""
        suite = newest_suite(self._release)
        return find_qemu(self._archive(suite), self._cache / suite, since=VFIO_USER_SINCE)

    @cached_property
    def accelerator(self) -> Accelerator:
        return choose_accelerator(self.qemu, self.kernel.image, self.tree, self._cache)

    def _own_modules(self, guest: Guest) -> dict[str, Path]:
        own = {}
        for module in guest.modules:
            if isinstance(module, Path):
                own[module_name(module.name)] = module
            elif module in FROM_SOURCE and not self.kernel.has_module(module):
                own[module] = self._builder.from_source(module)
        return own

    def _archive(self, suite: str) -> Archive:
        sources = suite_sources(suite, host_sources(), self._release)
        return Archive(self._cache / suite / "apt", suite, sources)


def obstacle() -> str | None:
    """Reason why no guest can run on this host; None if nothing is known to be in the way."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the VM lab needs Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    try:
        host_release()
    except LabError as error:
        return str(error)
    lacking = missing(["apt-get", "apt-cache", "apt-config", "dpkg-deb", "tar", "bash"])
    if lacking:
        return f"the VM lab needs {', '.join(lacking)}, as Debian has them"
    return None
