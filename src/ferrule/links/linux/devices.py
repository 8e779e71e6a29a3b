"""GPUs: ``/sys/bus/pci/devices``, amdgpu's topology, NVIDIA's ``/proc/driver/nvidia`` and ``nvidia-smi``.

The formats are those of the kernel's ``Documentation/gpu/amdgpu/driver-misc.rst``, ``drivers/gpu/drm/amd/amdkfd``
(kfd_topology.c) and ``Documentation/ABI/testing/sysfs-bus-pci``, and of NVIDIA's driver README.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ferrule.links import nvidia_smi
from ferrule.links.linux.pcie import DEVICES, card_link
from ferrule.links.own import NODES, TORCH
from ferrule.links.pci_names import AMD, INTEL, NVIDIA, device_name, vendor_name
from ferrule.links.reader import PCI_ADDRESS, Reader, whole
from ferrule.links.types.device import ComputeDevice, DeviceNode, TorchBuild

KFD = "/sys/class/kfd/kfd/topology/nodes"
NVIDIA_PROC = "/proc/driver/nvidia"
_FIELDS = "pci.bus_id,compute_cap,memory.total,persistence_mode,power.limit,power.default_limit"
NVIDIA_SMI = nvidia_smi.query(_FIELDS)
TTM_PAGES = "/sys/module/ttm/parameters/pages_limit"
GTT_SIZE = "/sys/module/amdgpu/parameters/gttsize"
NO_RETRY = "/sys/module/amdgpu/parameters/noretry"
TORCH_FILE = "torch/version.py"

_DISPLAY, _ACCELERATOR = 0x03, 0x12
_APUS = re.compile(r"gfx(?:90c|902|1033|1035|1036|1103|115[0-3])")
"""Graphics inside a processor, by the table of LLVM's "User Guide for AMDGPU Backend"."""
_NVIDIA_UNIFIED = re.compile(r"\b(?:GB10|Orin|Thor)\b")
_INTEL_INSIDE = "0000:00:02."
"""Intel's graphics inside a processor are always this device."""
_INTEL_ARCHITECTURES = {0xE20B: "bmg", 0xE20C: "bmg", 0xE211: "bmg", 0xE212: "bmg", 0x56A0: "acm", 0x56A1: "acm"}
"""Of the cards that `pci_names` knows, as Intel's compilers call them."""


def read_devices(reader: Reader, host_bytes: int | None) -> tuple[ComputeDevice, ...]:
    """``host_bytes``: memory of the host, which is also that of devices without their own."""
    found = []
    told: dict[str, list[str]] | None = None
    for address in reader.names(DEVICES):
        if not PCI_ADDRESS.fullmatch(address):
            continue
        code = reader.number(f"{DEVICES}/{address}/class", 0, 0xFFFFFF)
        vendor = reader.number(f"{DEVICES}/{address}/vendor", 0, 0xFFFF)
        if code is None or vendor not in (AMD, INTEL, NVIDIA):
            continue
        if code >> 16 != _DISPLAY and not (code >> 16 == _ACCELERATOR and vendor == AMD):
            continue
        if vendor == AMD:
            found.append(_amd(reader, address))
        elif vendor == INTEL:
            found.append(_intel(reader, address, host_bytes))
        else:
            told = _smi(reader) if told is None else told
            found.append(_nvidia(reader, address, host_bytes, told.get(address)))
    return tuple(found)


def read_nodes(reader: Reader) -> tuple[DeviceNode, ...] | None:
    """Files of devices in ``/dev``; None where it was not recorded which there are."""
    told = reader.output(NODES, quiet=True)
    if told is None:
        return None
    found = []
    for line in told.splitlines():
        words = line.split()
        if len(words) == 4 and words[0].startswith("/dev/"):
            reader.note(words[0], line)
            found.append(DeviceNode(words[0], None if words[2] == "-" else words[2], words[3] == "usable"))
    return tuple(found)


def read_torch(reader: Reader) -> TorchBuild | None:
    lines = (line.split(maxsplit=1) for line in (reader.output(TORCH, quiet=True) or "").splitlines())
    told = {words[0]: words[1] for words in lines if len(words) == 2 and re.fullmatch(r"[\w.+-]{1,64}", words[1])}
    if "version" not in told:
        return None
    reader.note(TORCH_FILE, ", ".join(f"{name} {told.get(name)}" for name in ("version", "cuda", "hip", "xpu")))
    return TorchBuild(told["version"], told.get("cuda"), told.get("hip"), told.get("xpu"))


def _common(reader: Reader, address: str, vendor: int) -> ComputeDevice:
    path = f"{DEVICES}/{address}"
    number = reader.number(f"{path}/device", 0, 0xFFFF)
    return ComputeDevice(
        address=address,
        path=path,
        kind="xpu" if vendor == INTEL else "cuda",
        vendor=vendor_name(vendor) or "",
        name=device_name(vendor, number) or address,
        vendor_id=vendor,
        device_id=number,
        driver=reader.last(f"{path}/driver"),
        window_bytes=_window(reader, path),
        nodes=tuple(f"/dev/dri/{one}" for one in reader.names(f"{path}/drm") if one.startswith("renderD")),
        link=card_link(reader, address),
    )


def _amd(reader: Reader, address: str) -> ComputeDevice:
    common = _common(reader, address, AMD)
    path = common.path
    vram, gtt = (reader.number(f"{path}/mem_info_{name}_total") for name in ("vram", "gtt"))
    architecture = _gfx(reader, common.nodes)
    unified = architecture is not None and _APUS.fullmatch(architecture) is not None
    for where in (TTM_PAGES, GTT_SIZE) if unified else ():
        reader.text(where)
    # An APU takes all that programs want from the larger of the two (amdgpu's apu_prefer_gtt), never from both.
    retry = reader.number(NO_RETRY, -1, 1)
    memory = max((one for one in (vram, gtt) if one is not None), default=None) if unified else vram
    return replace(
        common,
        architecture=architecture,
        unified=unified,
        memory_bytes=memory,
        gtt_bytes=gtt,
        carved_bytes=vram if unified else None,
        nodes=("/dev/kfd", *common.nodes),
        performance_level=reader.text(f"{path}/power_dpm_force_performance_level"),
        scheduler_firmware=reader.number(f"{path}/fw_version/mes_fw_version", 0, 0xFFFFFFFF),
        no_retry=None if retry in (None, -1) else retry == 1,
        iommu_type=reader.text(f"{path}/iommu_group/type"),
    )


def _gfx(reader: Reader, nodes: tuple[str, ...]) -> str | None:
    """Architecture of the topology's node with one of these files: ``gfx_target_version 110501`` is gfx1151."""
    minors = {int(one.removeprefix("/dev/dri/renderD")) for one in nodes if one[len("/dev/dri/renderD") :].isdecimal()}
    for name in reader.names(KFD):
        lines = (line.split() for line in (reader.block(f"{KFD}/{name}/properties") or "").splitlines())
        told = {words[0]: number for words in lines if len(words) == 2 and (number := whole(words[1])) is not None}
        version = told.get("gfx_target_version", 0)
        if 0 < version < 1_000_000 and told.get("drm_render_minor") in minors:
            return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
    return None


def _intel(reader: Reader, address: str, host_bytes: int | None) -> ComputeDevice:
    common = _common(reader, address, INTEL)
    unified = address.startswith(_INTEL_INSIDE)
    return replace(
        common,
        architecture=_INTEL_ARCHITECTURES.get(common.device_id or 0),
        unified=unified,
        memory_bytes=host_bytes if unified else None,
    )


def _nvidia(reader: Reader, address: str, host_bytes: int | None, told: list[str] | None) -> ComputeDevice:
    common = _common(reader, address, NVIDIA)
    information = _table(reader, f"{NVIDIA_PROC}/gpus/{address}/information")
    name = information.get("Model", common.name)
    minor = information.get("Device Minor", "")
    numbered = (f"/dev/nvidia{minor}",) if minor.isdecimal() and minor.isascii() else ()
    capability, mib, persistent, limit, usual = told or ("", "", "", "", "")
    unified = _NVIDIA_UNIFIED.search(name) is not None
    return replace(
        common,
        name=name,
        driver_version=_driver_version(reader) if common.driver == "nvidia" else None,
        architecture=f"sm_{capability.replace('.', '')}" if re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability) else None,
        unified=unified,
        memory_bytes=host_bytes if unified else (whole(mib) or 0) << 20 or None,
        nodes=("/dev/nvidiactl", "/dev/nvidia-uvm", *numbered),
        persistent={"Enabled": True, "Disabled": False}.get(persistent),
        watts_limit=_watts(limit),
        watts_default=_watts(usual),
    )


def _watts(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", text, re.ASCII) else None


def _smi(reader: Reader) -> dict[str, list[str]]:
    """The answers to `NVIDIA_SMI` but for the first, which is the device's PCI address."""
    found = {}
    for row in nvidia_smi.rows_of(reader.output(NVIDIA_SMI) or ""):
        # The tool writes eight digits of the domain.
        if len(row) == len(_FIELDS.split(",")) and re.fullmatch(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]{7}", row[0]):
            found[row[0][4:].lower()] = row[1:]
            reader.note(f"$ {NVIDIA_SMI} ({row[0][4:].lower()})", ", ".join(row))
    return found


def _driver_version(reader: Reader) -> str | None:
    text = reader.block(f"{NVIDIA_PROC}/version", 1024) or ""
    match = re.search(r"Kernel Module(?: for \w+)? +([0-9]{1,4}(?:\.[0-9]{1,4}){1,2})\b", text)
    return match[1] if match else None


def _table(reader: Reader, path: str) -> dict[str, str]:
    """Lines such as ``Model: NVIDIA GeForce RTX 3090``."""
    lines = (line.partition(":") for line in (reader.block(path, 4096) or "").splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if value.strip() and value.strip().isprintable()}


def _window(reader: Reader, path: str) -> int | None:
    """Size of the largest region: lines of first and last address, and flags."""
    sizes = []
    for line in (reader.block(f"{path}/resource", 4096) or "").splitlines():
        ends = [whole(word) for word in line.split()[:2]]
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None and ends[1] > ends[0] > 0:
            sizes.append(ends[1] - ends[0] + 1)
    return max(sizes, default=None)
