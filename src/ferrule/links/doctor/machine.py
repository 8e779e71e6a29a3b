"""Checks of system properties that matter to cables: IOMMU, clock, Secure Boot, kernel, power."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrule.links.doctor.cures import by_hand, run
from ferrule.links.findings import Cure, Finding
from ferrule.links.linux.machine import (
    CHRONY,
    FREQUENCY,
    IOMMU_GROUPS,
    POWER_PROFILE,
    SECURE_BOOT,
    TIMEDATECTL,
)
from ferrule.links.types.inventory import Inventory

DRIVER_KERNEL = (6, 12)
"""The oldest that RDMA over USB4 is known to build on."""
CLOCK_SECONDS = 0.5


def check(inventory: Inventory) -> Iterator[Finding]:
    yield from _clock(inventory)
    yield from _iommu(inventory)
    yield from _secure_boot(inventory)
    yield from _kernel(inventory)
    yield from _power(inventory)


def _clock(inventory: Inventory) -> Iterator[Finding]:
    clock = inventory.machine.clock
    if clock is None:
        return
    offset = clock.offset_seconds
    off = offset is not None and abs(offset) > CLOCK_SECONDS
    if clock.synchronized is not False and not off:
        return
    what = f"The clock is off by {offset:.3g} s." if off else "The clock does not follow a time server."
    why = "It costs no tokens/s. Logs of several hosts cannot be compared, and certificates and tokens may be refused."
    timesyncd = "sudo timedatectl set-ntp true"
    cure = (
        Cure("debian", "Let it follow one.", ("sudo apt install systemd-timesyncd", timesyncd)),
        Cure("fedora", "Let it follow one.", ("sudo dnf install chrony", "sudo systemctl enable --now chronyd")),
        Cure("arch", "Let it follow one.", (timesyncd,)),
        Cure("alpine", "Let it follow one.", ("setup-ntp chrony",)),
    )
    evidence = inventory.evidence(f"$ {CHRONY}") if off else _synchronized(inventory)
    yield Finding("clock-not-synchronized", "warning", "clock", what, evidence, why, cure)


def _synchronized(inventory: Inventory) -> tuple[tuple[str, str], ...]:
    where = f"$ {TIMEDATECTL}"
    lines = inventory.seen.get(where, "").splitlines()
    return tuple((where, line) for line in lines if "Synchronized" in line)


def _iommu(inventory: Inventory) -> Iterator[Finding]:
    """Per device: with ``iommu=pt`` sockets for strangers' devices are still translated, and should be."""
    users = {domain.pci_address for domain in inventory.thunderbolt if domain.peers}
    users |= {device.pci_address for device in inventory.rdma}
    slow = [link for link in inventory.pcie if link.address in users and (link.iommu_type or "").startswith("DMA")]
    if not slow:
        return
    passthrough = "iommu=pt" in (inventory.machine.boot_command_line or ())
    cards = all(link.class_code is not None and link.class_code >> 8 != 0x0C03 for link in slow)
    if not cards and passthrough:
        return  # what is left is the guard of the sockets
    names = ", ".join(link.address for link in slow)
    what = f"The IOMMU translates every access of {names} to memory."
    why = (
        "Each transfer pays for it; how much depends on the card. The fastest published numbers for RDMA over USB4 "
        "were taken with it off."
    )
    line = "iommu=pt"
    cure: tuple[Cure, ...] = (
        Cure(
            "debian",
            f"Add {line} to GRUB_CMDLINE_LINUX in /etc/default/grub, then:",
            ("sudo update-grub", "sudo reboot"),
        ),
        Cure(
            "fedora",
            "Turn it off for devices that you trust.",
            (f"sudo grubby --update-kernel=ALL --args={line}", "sudo reboot"),
        ),
        Cure("arch", f"Add {line} to the kernel's parameters of your boot loader, then:", ("sudo reboot",)),
    )
    if not cards:
        text = "The guard of USB4 sockets stays on even so; only the firmware can turn that off."
        cure = tuple(Cure(one.system, f"{one.text} {text}", one.commands) for one in cure)
    evidence = inventory.evidence(*(f"{link.path}/iommu_group/type" for link in slow))
    evidence = evidence or ((IOMMU_GROUPS, ", ".join(f"{link.iommu_type}" for link in slow)),)
    yield Finding("iommu-translated", "note", "IOMMU", what, evidence, why, cure)


def _secure_boot(inventory: Inventory) -> Iterator[Finding]:
    """Only where a module that the distribution does not sign may be wanted: RDMA over USB4, cards with own drivers."""
    if inventory.machine.secure_boot is not True or not inventory.peers:
        return
    what = "Secure Boot is on: modules that your distribution did not sign are refused."
    why = "TCP over the cable works. A driver for RDMA over USB4 has to be signed with a key of yours."
    cure = run(
        "When you install such a driver, let DKMS sign it, and enroll its key once (asked for at the next start).",
        "sudo mokutil --import /var/lib/dkms/mok.pub",
    )
    evidence = tuple((where, "1") for where in (SECURE_BOOT,) if where in inventory.seen)
    evidence += inventory.evidence("/sys/kernel/security/lockdown")
    yield Finding("secure-boot", "note", "Secure Boot", what, evidence, why, cure)


def _kernel(inventory: Inventory) -> Iterator[Finding]:
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,4})", inventory.machine.kernel or "")
    if inventory.machine.system != "linux" or not match or not inventory.thunderbolt:
        return
    if (int(match[1]), int(match[2])) >= DRIVER_KERNEL:
        return
    what = f"The kernel is {match[0]}; a driver for RDMA over USB4 needs {'.'.join(map(str, DRIVER_KERNEL))}."
    why = "TCP over the cable works. RDMA would answer about 8 times faster (8 instead of 65 µs, as published)."
    cure = by_hand("Install a newer kernel if you want RDMA over USB4: a newer release, or backports.")
    evidence = inventory.evidence("/proc/sys/kernel/osrelease")
    yield Finding("kernel-old", "note", "kernel", what, evidence, why, cure)


def _power(inventory: Inventory) -> Iterator[Finding]:
    """The governor ``powersave`` costs speed only with drivers that do not choose frequencies themselves."""
    machine = inventory.machine
    slow = machine.power_profile in ("low-power", "quiet", "cool")
    own = (machine.frequency_driver or "").startswith(("intel_pstate", "amd-pstate-epp"))
    if not slow and not (machine.governor == "powersave" and machine.frequency_driver and not own):
        return
    if slow:
        what = f"The firmware's power profile is {machine.power_profile}."
        cure = run("Choose another one.", "powerprofilesctl set performance")
        evidence = inventory.evidence(POWER_PROFILE)
    else:
        what = f"The processor stays at its lowest frequency (governor powersave of {machine.frequency_driver})."
        cure = run("Choose another governor, until the next start.", "sudo cpupower frequency-set -g performance")
        evidence = inventory.evidence(f"{FREQUENCY}/scaling_governor", f"{FREQUENCY}/scaling_driver")
    why = "All of computing slows down, and small messages with it: the processor handles each of 160 per token."
    yield Finding("power-saving", "warning", "power", what, evidence, why, cure)
