"""KVM or emulation: only a boot tells. On some hosts /dev/kvm opens and guests then crawl or crash."""

from __future__ import annotations

import io
import os
from contextlib import closing
from pathlib import Path

from ferrule.errors import GuestError
from ferrule.files import write_whole
from ferrule.lab.vm.image.cache import locked
from ferrule.lab.vm.image.cpio import CpioWriter
from ferrule.lab.vm.image.tree import Tree
from ferrule.lab.vm.machine.guest import Guest
from ferrule.lab.vm.machine.process import Machine
from ferrule.lab.vm.machine.qemu import KVM, TCG, Accelerator, Qemu
from ferrule.process import boot_id

_DEVICE = Path("/dev/kvm")
_SECONDS = 8
_LOCK_SECONDS = 10
_READY = "lab: booted"
_INIT = f'#!/bin/busybox sh\necho "{_READY}"\n/bin/busybox poweroff -f\n'


def choose_accelerator(qemu: Qemu, kernel: Path, tree: Tree, cache: Path) -> Accelerator:
    """KVM if a guest boots with it within some seconds, else TCG. The answer is kept until the host restarts, for all
    versions of the emulator: it depends on the host."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return TCG
    memory = cache / "accelerator"
    if memory.exists():
        boot, _, name = memory.read_text().rpartition("\n")
        if boot == boot_id():
            return KVM if name == KVM.name else TCG
    answer = KVM if _boots(KVM, qemu, kernel, tree) else TCG
    with locked(memory.with_name(".accelerator.lock"), _LOCK_SECONDS):
        write_whole(memory, f"{boot_id()}\n{answer.name}")
    return answer


def _boots(accelerator: Accelerator, qemu: Qemu, kernel: Path, tree: Tree) -> bool:
    image = io.BytesIO()
    cpio = CpioWriter(image)
    cpio.directory("/proc")
    cpio.directory("/dev")
    cpio.character_device("/dev/console", 5, 1)
    cpio.file("/bin/busybox", tree.find("busybox").read_bytes(), mode=0o755)
    cpio.file("/init", _INIT.encode(), mode=0o755)
    cpio.close()
    with closing(Machine(qemu, accelerator, kernel, Guest("", cpus=1, memory_mb=512))) as machine:
        machine.image.write(image.getvalue())
        machine.start()
        try:
            machine.wait(_SECONDS)
        except GuestError:
            return False
        return _READY in machine.console()
