"""The emulator: the host's own if installed, else out of the package, and its command line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.usb4.lab import qemu_arguments
from ferrule.lab.vm.image.commands import run
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.image.tree import LIBRARIES, fetch_tree

_PROGRAM = "qemu-system-x86_64"
_PACKAGE = "qemu-system-x86"
VFIO_USER_SINCE = (10, 1)
"""The first version of QEMU that has devices which another process serves (vfio-user)."""

_KERNEL_PARAMETERS = (
    "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr rcupdate.rcu_expedited=1"
    # a guest that stands still for a minute says where each of its processors is, and ends
    " sysctl.kernel.watchdog_thresh=30 sysctl.kernel.softlockup_panic=1 panic_print=0x40"
)
_FIRST_SLOT = 0x10
"""The PCI slot of a guest's first controller; the next ones follow."""


@dataclass(frozen=True)
class Accelerator:
    """Accelerator that runs guest code. ``name``: ``kvm`` or ``tcg``; ``cpu``: what guests see; ``parameters``: of
    their kernel."""

    name: str
    options: str
    cpu: str
    parameters: str = ""


# The plain model boots fastest under emulation; the additions are what current numpy wheels are compiled for.
# A busy host upsets the calibration of the emulated TSC: one guest's clock ran 2.7 times too fast.
_EMULATED_CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+lahf-lm"
TCG = Accelerator("tcg", "tcg,thread=multi", _EMULATED_CPU, "no_timer_check tsc=unstable clocksource=hpet")
KVM = Accelerator("kvm", "kvm", "host,arch-capabilities=off")
EXACT = Accelerator("exact", "tcg,thread=single", _EMULATED_CPU, "no_timer_check")
"""The guest's clock counts its instructions, one nanosecond each, so nothing on the host changes a measured time."""


@dataclass(frozen=True)
class Hardware:
    """Hardware of one guest. ``image``, ``console``, ``results``: paths of files; ``streams``: descriptors of sockets
    by the names that their ports have in the guest; ``terminals``: descriptors of sockets that are the consoles hvc0,
    hvc1...; ``controllers``: sockets of PCI devices that another process serves, which may reach the memory; ``disk``:
    the file that is its disk, /dev/vda."""

    kernel: Path
    image: str
    console: str
    results: str
    cpus: int
    memory_mb: int
    streams: Sequence[tuple[str, int]] = ()
    terminals: Sequence[int] = ()
    controllers: Sequence[Path] = ()
    disk: Path | None = None


def controller_slot(number: int) -> str:
    """The PCI address in the guest of its controller ``number``."""
    return f"0000:00:{_FIRST_SLOT + number:02x}.0"


@dataclass(frozen=True)
class Qemu:
    """``command``: program and arguments; ``modules``: where it finds its parts if not in its own directory."""

    command: tuple[str, ...]
    modules: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that it needs beside ours."""
        return {} if self.modules is None else {"QEMU_MODULE_DIR": str(self.modules)}

    def line(self, accelerator: Accelerator, hardware: Hardware) -> list[str]:
        """The command that boots a guest."""
        arguments = [
            *self.command,
            "-accel", accelerator.options,
            "-cpu", accelerator.cpu,
            "-m", f"{hardware.memory_mb}M",
            "-smp", str(hardware.cpus),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", str(hardware.kernel),
            "-initrd", hardware.image,
            "-append", f"{_KERNEL_PARAMETERS} {accelerator.parameters}",
            "-serial", f"file:{hardware.console}",
            "-device", "virtio-serial",
            "-chardev", f"file,id=results,path={hardware.results}",
            "-device", "virtserialport,chardev=results,name=lab.results",
        ]  # fmt: skip
        for name, descriptor in hardware.streams:
            arguments += ["-chardev", f"socket,id={name},fd={descriptor}"]
            arguments += ["-device", f"virtserialport,chardev={name},name=lab.{name}"]
        for number, descriptor in enumerate(hardware.terminals):
            arguments += ["-chardev", f"socket,id=terminal{number},fd={descriptor}"]
            arguments += ["-device", f"virtconsole,chardev=terminal{number}"]
        if hardware.disk is not None:
            file = {"driver": "file", "filename": str(hardware.disk), "cache": {"no-flush": True}}
            arguments += ["-blockdev", json.dumps({"driver": "raw", "node-name": "disk", "file": file})]
            arguments += ["-device", "virtio-blk-pci,drive=disk"]
        if accelerator is EXACT:
            arguments += ["-icount", "shift=0,sleep=off"]
        if not hardware.controllers:
            return [*arguments, "-machine", "q35"]
        slots = range(_FIRST_SLOT, _FIRST_SLOT + len(hardware.controllers))
        arguments += ["-machine", "q35,memory-backend=usb4-memory"]
        return arguments + qemu_arguments(hardware.controllers, hardware.memory_mb, slots)


def find_qemu(archive: Archive, cache: Path, *, since: tuple[int, int]) -> Qemu:
    """The host's QEMU if it is not older than ``since``, or that of ``archive``, fetched on the first call.

    Raises `LabError` where that is older, too.
    """
    installed = shutil.which(_PROGRAM)
    if installed and qemu_version(run([installed, "--version"], timeout=30, what="ask QEMU")) >= since:
        return Qemu((installed,))
    tree = fetch_tree(archive, [_PACKAGE], cache)
    share = tree.root / "usr" / "share"
    command = (*tree.command(_PROGRAM), "-L", str(share / "qemu"), "-L", str(share / "seabios"))
    found = Qemu(command, tree.root / LIBRARIES.lstrip("/") / "qemu")
    version = qemu_version(tree.run(_PROGRAM, "--version", timeout=30))
    if version < since:
        raise LabError(
            f"virtual USB4 needs QEMU {since[0]}.{since[1]} or newer, and the archive of this host has "
            f"{version[0]}.{version[1]}; install a newer {_PACKAGE}"
        )
    return found


def qemu_version(text: str) -> tuple[int, int]:
    """From what it says of itself: ``QEMU emulator version 11.1.3 (...)``. Raises `LabError` for anything else."""
    match = re.search(r"version (\d+)\.(\d+)", text)
    if match is None:
        raise LabError(f"QEMU does not say which version it is: {text.strip()[:200]}")
    return int(match[1]), int(match[2])
