"""The emulator: the host's own if installed, else out of the package, and its command line."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ferrule.lab.vm.packages import Archive
from ferrule.lab.vm.tree import LIBRARIES, fetch_tree

_PROGRAM = "qemu-system-x86_64"

_KERNEL_WORDS = "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr rcupdate.rcu_expedited=1"


@dataclass(frozen=True)
class Accelerator:
    """How guest code runs. ``name``: ``kvm`` or ``tcg``; ``cpu``: what guests see; ``words``: for their kernel."""

    name: str
    options: str
    cpu: str
    words: str = ""


# The plain model boots fastest under emulation; the additions are what current numpy wheels are compiled for.
# A busy host upsets the calibration of the emulated TSC: one guest's clock ran 2.7 times too fast.
TCG = Accelerator(
    "tcg",
    "tcg,thread=multi",
    "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+lahf-lm",
    "no_timer_check tsc=unstable clocksource=hpet",
)
KVM = Accelerator("kvm", "kvm", "host,arch-capabilities=off")


@dataclass(frozen=True)
class Qemu:
    """``command``: the words that start it; ``modules``: where it finds its parts if not in its own directory."""

    command: tuple[str, ...]
    modules: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        """What its environment needs beside ours."""
        return {} if self.modules is None else {"QEMU_MODULE_DIR": str(self.modules)}

    def line(
        self,
        accelerator: Accelerator,
        *,
        kernel: Path,
        image: str,
        console: str,
        results: str,
        cpus: int,
        memory_mb: int,
    ) -> list[str]:
        """The command that boots a guest; ``image``, ``console`` and ``results`` are paths of files."""
        return [
            *self.command,
            "-accel", accelerator.options,
            "-cpu", accelerator.cpu,
            "-machine", "q35",
            "-m", f"{memory_mb}M",
            "-smp", str(cpus),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", str(kernel),
            "-initrd", image,
            "-append", f"{_KERNEL_WORDS} {accelerator.words}",
            "-serial", f"file:{console}",
            "-device", "virtio-serial",
            "-chardev", f"file,id=results,path={results}",
            "-device", "virtserialport,chardev=results,name=lab.results",
        ]  # fmt: skip


def find_qemu(archive: Archive, cache: Path) -> Qemu:
    """The host's QEMU, or that of the archive, fetched on the first call."""
    installed = shutil.which(_PROGRAM)
    if installed:
        return Qemu((installed,))
    tree = fetch_tree(archive, ["qemu-system-x86"], cache)
    share = tree.root / "usr" / "share"
    command = (*tree.command(_PROGRAM), "-L", str(share / "qemu"), "-L", str(share / "seabios"))
    return Qemu(command, tree.root / LIBRARIES.lstrip("/") / "qemu")
