"""GPUs: does the machine let programs use them, and as fast as they are?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrule.links.doctor.cures import by_hand, run
from ferrule.links.findings import Cure, Finding
from ferrule.links.linux.devices import GTT_SIZE, NO_RETRY, NVIDIA_SMI, TTM_PAGES
from ferrule.links.own import NODES
from ferrule.links.pci_names import AMD, INTEL, NVIDIA
from ferrule.links.types.device import ComputeDevice
from ferrule.links.types.inventory import Evidence, Inventory
from ferrule.units import format_bytes

_GIB = 1 << 30
_GTT_PART = 0.75
"""Of all memory; amdgpu lends half of it by itself."""
_SYSTEM_BYTES = 8 * _GIB
"""That a raised limit leaves to the system."""
_CARVED_BYTES = 1 * _GIB
"""More than AMD advises to carve out."""
_PAGE_BYTES = 4096
_SMALL_WINDOW = 256 << 20
"""The region of a PCI device without Resizable BAR."""
_SLOW_LEVELS = ("low", "profile_min_sclk", "profile_min_mclk", "manual")
_HALO = "gfx1151"
_BAD_SCHEDULER = 0x83
"""MES firmware of linux-firmware 20251125 and its time: github.com/ROCm/legacy-rocm-build/issues/5724."""
_HALO_KERNEL = (6, 18, 4)
"""The oldest of kernel.org with what ROCm needs on it; Ubuntu's 6.14 and 6.17 have it too: "AMD Strix Halo system
optimization", rocm.docs.amd.com."""
_XNACK = ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")
"""GPUs that may repeat an access that found no page, by the table of LLVM's "User Guide for AMDGPU Backend"; others
never do."""
_LOG_IN = "Then log in again: groups are given at login."


def check(inventory: Inventory) -> Iterator[Finding]:
    for device in inventory.capable_devices:
        yield from _nodes(inventory, device)
        yield from _power(inventory, device)
        if device.vendor_id == AMD:
            yield from _gtt(inventory, device)
            yield from _scheduler(inventory, device)
            yield from _kernel(inventory, device)
            yield from _xnack(inventory, device)
            yield from _translated(inventory, device)
        elif device.vendor_id == NVIDIA:
            yield from _persistence(inventory, device)
            yield from _watts(inventory, device)
        elif device.vendor_id == INTEL:
            yield from _window(inventory, device)


def subject(device: ComputeDevice) -> str:
    return f"{device.name} ({device.address})"


def driver_evidence(device: ComputeDevice) -> tuple[Evidence, ...]:
    return ((f"{device.path}/driver", device.driver or "is not there"),)


def _nodes(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    """Only with a driver: without one there are none."""
    if inventory.device_nodes is None or device.driver not in ("amdgpu", "i915", "nvidia", "xe"):
        return
    missing = [path for path in device.nodes if inventory.device_node(path) is None]
    if missing:
        what = f"{device.name} has its driver {device.driver}, and {', '.join(missing)} not."
        listed = inventory.seen.get(f"$ {NODES}", "").split("\n")
        there = ", ".join(line.split()[0] for line in listed if line)
        evidence: tuple[Evidence, ...] = ((f"$ {NODES}", there or "lists nothing"),)
        why = "Programs reach the GPU by these files: torch finds none without them."
        yield Finding("gpu-node-missing", "error", subject(device), what, evidence, why, _make_nodes(device, missing))
    refused = [node for path in device.nodes if (node := inventory.device_node(path)) and not node.usable]
    if refused:
        what = f"You may not use {', '.join(node.path for node in refused)}, by which programs reach {device.name}."
        groups = ",".join(dict.fromkeys(node.group for node in refused if node.group not in (None, "root")))
        cure = run(f"Join the groups that may. {_LOG_IN}", f'sudo usermod -aG {groups} "$USER"')
        if not groups:
            cure = run(
                "They belong to no group: let udev give them theirs again.",
                *("sudo udevadm control --reload", "sudo udevadm trigger"),
            )
        evidence = inventory.evidence(*(node.path for node in refused))
        why = "torch finds no GPU, or cannot open it, unless it runs as root."
        yield Finding("gpu-no-access", "error", subject(device), what, evidence, why, cure)


def _make_nodes(device: ComputeDevice, missing: list[str]) -> tuple[Cure, ...]:
    flags = " ".join(f"--device {path}" for path in missing)
    if device.vendor_id == NVIDIA:
        inside = "In a container, start that with --gpus all (docker) or --device nvidia.com/gpu=all (podman)."
        return run(f"Let the driver make them. {inside}", "sudo nvidia-modprobe -u -c 0", "nvidia-smi -L")
    return run(
        f"Load the driver anew. In a container, start that with {flags}.", f"sudo modprobe -r {device.driver}",
        f"sudo modprobe {device.driver}", "sudo dmesg | grep -i " + str(device.driver),
    )  # fmt: skip


def _power(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    if device.performance_level not in _SLOW_LEVELS:
        return
    path = f"{device.path}/power_dpm_force_performance_level"
    what = f"The clocks of {device.name} are held down: its performance level is {device.performance_level}."
    why = "Reading weights and computing slow down with them: tokens/s fall, and prompts take longer."
    cure = run("Let the driver choose; this lasts until the next start.", f"echo auto | sudo tee {path}")
    yield Finding("gpu-power-low", "warning", subject(device), what, inventory.evidence(path), why, cure)


def _watts(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    limit, usual = device.watts_limit, device.watts_default
    if limit is None or usual is None or limit >= usual:
        return
    what = f"{device.name} may draw {limit:g} W; its default is {usual:g} W."
    why = "Prompts and training slow down with its clocks; tokens of one sequence less, as they wait for memory."
    cure = run(
        "Raise it, until the next start, unless it was chosen for heat, noise or the power supply.",
        f"sudo nvidia-smi -i {device.address} -pl {usual:.0f}",
    )
    evidence = inventory.evidence(f"$ {NVIDIA_SMI} ({device.address})")
    yield Finding("gpu-power-low", "note", subject(device), what, evidence, why, cure)


def _xnack(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    if device.architecture not in _XNACK or device.no_retry is not True:
        return
    what = f"XNACK is off on {device.name}: it cannot wait for pages of the host's memory."
    why = "Programs that use managed memory copy it beforehand, or fail. Ferrule does not need it."
    cure = by_hand("Where another program needs it: boot with amdgpu.noretry=0, and run that with HSA_XNACK=1.")
    yield Finding("gpu-xnack-off", "note", subject(device), what, inventory.evidence(NO_RETRY), why, cure)


def _translated(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    if not device.unified or not (device.iommu_type or "").startswith("DMA"):
        return
    what = f"The IOMMU translates what {device.name} reads of the memory that it shares with the processor."
    why = "Each access may take longer; guides to Strix Halo ask for iommu=pt. How many tokens/s it costs is not known."
    text = "If this machine gets no devices that you do not trust, and runs no virtual machines: boot with iommu=pt."
    cure = (
        Cure("fedora", text, ("sudo grubby --update-kernel=ALL --args=iommu=pt", "sudo reboot")),
        Cure("any", f"{text} With GRUB it belongs into GRUB_CMDLINE_LINUX of /etc/default/grub.", ("sudo reboot",)),
    )
    evidence = inventory.evidence(f"{device.path}/iommu_group/type")
    yield Finding("gpu-iommu", "note", subject(device), what, evidence, why, cure)


def _persistence(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    if device.persistent is not False:
        return
    what = f"NVIDIA's driver lets {device.name} go when no program uses it: persistence mode is off."
    why = "Each start of a model then waits a second or more for the GPU. Tokens/s are the same."
    cure = run("Keep it awake, now and at every start.", "sudo systemctl enable --now nvidia-persistenced")
    evidence = inventory.evidence(f"$ {NVIDIA_SMI} ({device.address})")
    yield Finding("gpu-persistence-off", "note", subject(device), what, evidence, why, cure)


def _gtt(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    host, has = inventory.machine.memory_bytes, device.memory_bytes
    if not device.unified or host is None or has is None or device.gtt_bytes is None:
        return
    whole = host + (device.carved_bytes or 0)
    if has >= _GTT_PART * whole:
        return
    room = (whole - _SYSTEM_BYTES) // _GIB
    if room * _GIB <= has:
        return
    what = f"{device.name} may have {format_bytes(has)} of the machine's {format_bytes(whole)}."
    why = (
        "Larger models do not fit on it, though the memory is there. amdgpu lends half of the host's by itself; memory "
        "that the firmware carves out for the GPU is lost to the rest."
    )
    pages = room * _GIB // _PAGE_BYTES
    line = f"ttm.pages_limit={pages}"
    text = f"Lend it {room} GiB."
    if (device.carved_bytes or 0) > _CARVED_BYTES:
        text = f"First choose the least memory for the GPU in the firmware. {text}"
    cure = (
        Cure(
            "debian",
            f"{text} Add {line} to GRUB_CMDLINE_LINUX in /etc/default/grub, then:",
            ("sudo update-grub", "sudo reboot"),
        ),
        Cure("fedora", text, (f"sudo grubby --update-kernel=ALL --args={line}", "sudo reboot")),
        Cure("arch", f"{text} Add {line} to the kernel's parameters of your boot loader, then:", ("sudo reboot",)),
        Cure("any", "Or with AMD's tool:", ("pipx install amd-debug-tools", f"amd-ttm --set {room}", "sudo reboot")),
    )
    places = (f"{device.path}/mem_info_gtt_total", f"{device.path}/mem_info_vram_total", TTM_PAGES, GTT_SIZE)
    yield Finding("gpu-gtt-small", "warning", subject(device), what, inventory.evidence(*places), why, cure)


def _scheduler(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    if device.architecture != _HALO or device.scheduler_firmware != _BAD_SCHEDULER:
        return
    what = f"{device.name} runs the MES firmware {_BAD_SCHEDULER:#x}, which AMD took back."
    why = (
        "ROCm programs die with memory access faults, or the GPU hangs (issue 5724 of ROCm): "
        "linux-firmware 20251125 had it."
    )
    text = "Install a newer linux-firmware, or that from before."
    newer = "Install a newer linux-firmware."
    cure = (
        Cure("debian", newer, ("sudo apt update", "sudo apt install --only-upgrade linux-firmware", "sudo reboot")),
        Cure("fedora", text, ("sudo dnf upgrade amd-gpu-firmware", "sudo dracut --force", "sudo reboot")),
        Cure("arch", newer, ("sudo pacman -Syu linux-firmware", "sudo reboot")),
    )
    evidence = inventory.evidence(f"{device.path}/fw_version/mes_fw_version")
    yield Finding("gpu-firmware-bad", "error", subject(device), what, evidence, why, cure)


def _kernel(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?", inventory.machine.kernel or "")
    if device.architecture != _HALO or match is None:
        return
    version = tuple(int(part or 0) for part in match.groups())
    patched = inventory.machine.os_id == "ubuntu" and version[:2] in ((6, 14), (6, 17))
    if version >= _HALO_KERNEL or patched:
        return
    wanted = ".".join(map(str, _HALO_KERNEL))
    what = f"The kernel is {match[0]}; AMD asks for {wanted} or newer on {device.name}, unless yours has been patched."
    why = "It is the first with the fixes that AMD lists for this machine (ROCm's page on its optimization)."
    evidence = inventory.evidence("/proc/sys/kernel/osrelease")
    cure = by_hand(f"Install a kernel of {wanted} or newer; on Ubuntu 24.04 the HWE kernel 6.17.")
    yield Finding("gpu-kernel-old", "note", subject(device), what, evidence, why, cure)


def _window(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    if device.unified or device.window_bytes is None or device.window_bytes > _SMALL_WINDOW:
        return
    what = f"The processor sees {format_bytes(device.window_bytes)} of the memory of {device.name} at a time."
    why = "Intel asks for Resizable BAR on Arc: without it copies to the card, and so loading a model, are much slower."
    cure = by_hand(
        'In the firmware turn on "Above 4G Decoding" and "Resizable BAR" (Re-Size BAR, Smart Access Memory), and turn '
        "off CSM."
    )
    places = _largest_region(inventory, device)
    yield Finding("gpu-bar-small", "warning", subject(device), what, places, why, cure)


def _largest_region(inventory: Inventory, device: ComputeDevice) -> tuple[Evidence, ...]:
    where = f"{device.path}/resource"
    lines = [line.split() for line in inventory.seen.get(where, "").splitlines()]
    sizes = [(int(words[1], 16) - int(words[0], 16), " ".join(words)) for words in lines if len(words) == 3]
    return ((where, max(sizes)[1]),) if sizes else ()
