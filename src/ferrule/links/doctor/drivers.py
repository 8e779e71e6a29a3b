"""Drivers of GPUs: the right one for each, and new enough for the torch that is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrule.links.doctor.cures import by_hand, install, run
from ferrule.links.doctor.devices import driver_evidence, subject
from ferrule.links.findings import Cure, Finding
from ferrule.links.linux.devices import NVIDIA_PROC, TORCH_FILE
from ferrule.links.pci_names import AMD, INTEL, NVIDIA
from ferrule.links.types.device import ComputeDevice, TorchBuild
from ferrule.links.types.inventory import Inventory

_DRIVERS = {AMD: ("amdgpu",), NVIDIA: ("nvidia",), INTEL: ("xe", "i915")}
_RUNTIMES = {AMD: "ROCm", NVIDIA: "CUDA", INTEL: "XPU"}
_CUDA_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for each major version of CUDA, by "CUDA Compatibility", minor version compatibility."""
_BATTLEMAGE = range(0xE200, 0xE300)
"""PCI devices that i915 does not drive (Linux include/drm/intel/pciids.h)."""
_CODE_FOR = {
    **dict.fromkeys(("gfx1150", "gfx1151"), ((2, 10), (7, 0))),
    **dict.fromkeys(("gfx1200", "gfx1201"), ((2, 7), None)),
}
"""The first torch whose own packages have code for a GPU, and the first ROCm of earlier ones that have it, too (pull
requests 167299 and 148562 of pytorch/pytorch)."""
_WHICH_TORCH = "https://pytorch.org/get-started"
_NVIDIA_CURE = (
    Cure("debian", "On Ubuntu:", ("sudo ubuntu-drivers install", "sudo reboot")),
    Cure(
        "fedora",
        "With RPM Fusion:",
        ("sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda", "sudo akmods --force", "sudo reboot"),
    ),
    Cure("arch", "NVIDIA's open modules:", ("sudo pacman -Syu nvidia-open nvidia-utils", "sudo reboot")),
    Cure("any", "Or from NVIDIA's page of drivers. With Secure Boot its modules must be signed."),
)


def check(inventory: Inventory) -> Iterator[Finding]:
    for device in inventory.capable_devices:
        yield from _bound(device)
        yield from _too_old(inventory, device)
    if inventory.torch is not None and inventory.capable_devices:
        yield from _build(inventory, inventory.torch)
        yield from _rocm(inventory, inventory.torch)


def _bound(device: ComputeDevice) -> Iterator[Finding]:
    battlemage = device.vendor_id == INTEL and device.device_id in _BATTLEMAGE
    wanted = ("xe",) if battlemage else _DRIVERS[device.vendor_id]
    if device.driver in wanted:
        return
    evidence = driver_evidence(device)
    cure: tuple[Cure, ...] = _NVIDIA_CURE
    if device.driver == "nouveau":
        what = f"{device.name} is driven by nouveau, which has no CUDA."
        why = "torch finds no GPU: ranks would compute on the processor."
        yield Finding("gpu-nouveau", "error", subject(device), what, evidence, why, _NVIDIA_CURE)
        return
    if device.driver is not None and device.driver.startswith("vfio"):
        what = f"{device.name} is set aside for virtual machines ({device.driver})."
        cure = by_hand("Nothing to do where that is wanted. Else take it out of the options of vfio-pci, and restart.")
        yield Finding("gpu-no-driver", "error", subject(device), what, evidence, "Programs here cannot use it.", cure)
        return
    what = f"{device.name} needs the driver {' or '.join(wanted)}, and has {device.driver or 'none'}."
    why = f"torch with {_RUNTIMES[device.vendor_id]} finds no GPU: ranks would compute on the processor."
    if device.vendor_id != NVIDIA:
        cure = (
            *run("Load it, and see what it says.", f"sudo modprobe {wanted[0]}", f"sudo dmesg | grep -i {wanted[0]}"),
            *install(
                "Where it lacks firmware:",
                {"debian": "linux-firmware", "fedora": "linux-firmware", "arch": "linux-firmware"},
                "sudo reboot",
            ),
        )
    yield Finding("gpu-no-driver", "error", subject(device), what, evidence, why, cure)


def _too_old(inventory: Inventory, device: ComputeDevice) -> Iterator[Finding]:
    cuda = None if inventory.torch is None else inventory.torch.cuda
    if device.driver_version is None or cuda is None:
        return
    least = _CUDA_DRIVERS.get(_leading(cuda), 0)
    if _leading(device.driver_version) >= least:
        return
    what = f"NVIDIA's driver is {device.driver_version}; CUDA {cuda} of the installed torch needs {least} or newer."
    why = "torch finds no GPU, or its first kernel fails."
    older = max(
        (major for major, driver in _CUDA_DRIVERS.items() if driver <= _leading(device.driver_version)), default=0
    )
    cure: tuple[Cure, ...] = _NVIDIA_CURE
    if older:
        cure += by_hand(f"Or install a torch for CUDA {older}: {_WHICH_TORCH} tells which.")
    evidence = inventory.evidence(f"{NVIDIA_PROC}/version", TORCH_FILE)
    yield Finding("gpu-driver-old", "error", subject(device), what, evidence, why, cure)


def _build(inventory: Inventory, torch: TorchBuild) -> Iterator[Finding]:
    """Whether it is built for any of the GPUs."""
    cards = inventory.capable_devices
    wanted = list(dict.fromkeys(_RUNTIMES[one.vendor_id] for one in cards))
    if torch.runtime in wanted:
        return
    names = ", ".join(dict.fromkeys(one.name for one in cards))
    built = "processors only" if torch.runtime is None else torch.runtime
    what = f"The installed torch {torch.version} is built for {built}, and there is {names}, for {' or '.join(wanted)}."
    why = "Ranks compute on the processor, since torch cannot reach the GPU."
    cure = run(
        f"Take it out, then install that for {wanted[0]}, with the command that {_WHICH_TORCH} tells for it.",
        "pip uninstall torch",
    )
    which = "torch-cpu-build" if torch.runtime is None else "torch-other-gpu"
    yield Finding(which, "warning", "torch", what, inventory.evidence(TORCH_FILE), why, cure)


def _rocm(inventory: Inventory, torch: TorchBuild) -> Iterator[Finding]:
    own, rocm = _first_two(torch.version), _first_two(torch.hip)
    for device in inventory.capable_devices:
        torch_least, rocm_least = _CODE_FOR.get(device.architecture or "", ((0, 0), None))
        if own is None or rocm is None or own >= torch_least or (rocm_least is not None and rocm >= rocm_least):
            continue
        what = f"The installed torch {torch.version} seems to have no code for {device.name} ({device.architecture})."
        why = "If so, its first operation there fails with `invalid device function`. AMD's packages may have it."
        least = ".".join(map(str, torch_least))
        cure = by_hand(f"Install torch {least} or newer for ROCm, with the command that {_WHICH_TORCH} tells for it.")
        yield Finding("torch-rocm-old", "warning", subject(device), what, inventory.evidence(TORCH_FILE), why, cure)


def _first_two(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", version or "")
    return (int(match[1]), int(match[2])) if match else None


def _leading(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0
