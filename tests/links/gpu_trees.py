"""Linux machines with GPUs: what is known of each from public documents. None was recorded on hardware."""

from __future__ import annotations

from collections.abc import Callable

from linux_trees import FEDORA, UBUNTU
from tree_builder import PCI, LinuxBuild, probe_of

from ferrule.links import Inventory
from ferrule.links.linux.devices import GTT_SIZE, KFD, NO_RETRY, NVIDIA_PROC, NVIDIA_SMI, TTM_PAGES
from ferrule.links.own import NODES, TORCH

GIB = 1 << 30
AMD_DOCUMENTS = (
    "Linux Documentation/gpu/amdgpu/driver-misc.rst, thermal.rst (memory, performance level)",
    "Linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c, amdgpu/amdgpu_ucode.c (topology, fw_version)",
    "github.com/warpfront/hipfire pull 59 (gfx_target_version 110501 of a Radeon 8060S)",
    "github.com/magnitudedev/magnitude issue 44 (its PCI address and firmware)",
    "rocm.docs.amd.com, AMD Strix Halo system optimization (pages_limit, kernels)",
)
NVIDIA_DOCUMENTS = (
    "NVIDIA driver README, The /proc filesystem interface; nvidia-smi(1)",
    "github.com/canonical/snapd pull 14893 (a whole /proc/driver/nvidia/gpus/.../information)",
)
SPARK_DOCUMENTS = (
    "docs.nvidia.com/dgx/dgx-spark/known-issues.html (nvidia-smi tells no memory)",
    "github.com/XuehaiPan/nvitop pull 208 (MemTotal, PCI address, driver)",
)
ARC_DOCUMENTS = (
    "pci-ids.ucw.cz (e20b, and the bridges e2ff and e2f0 on the card)",
    "Intel Arc B580 specifications (PCIe 4.0 x8, 12 GB)",
    "intel.com, Resizable BAR for Arc graphics",
)


def box(about: str, name: str, *sources: str, release: dict[str, str] = UBUNTU, **machine: object) -> LinuxBuild:
    """A machine with 10 Gb/s Ethernet."""
    build = LinuxBuild(about, *sources)
    given = {"product": ("ASUS", "System Product Name"), "cpu": "AMD Ryzen 9 9900X 12-Core Processor", "cpus": 24}
    build.machine(name, os_release=release, memlock="unlimited", active=("systemd-networkd", "systemd-timesyncd"),
                  **{**given, **machine})  # type: ignore[arg-type]  # fmt: skip
    build.pci("", "0000:00:02.2", "0x060400", (0x1022, 0x14DB), now=(16.0, 1), most=(16.0, 1), iommu="identity")
    wired = build.pci(
        "0000:00:02.2", "0000:0a:00.0", "0x020000", (0x10EC, 0x8127), now=(16.0, 1), most=(16.0, 1), driver="r8127"
    )
    build.loopback()
    build.netdev("enp10s0", wired, addresses=("192.168.1.90/24",), speed=10_000, mtu=9000, mac="02:5e:00:00:09:01")
    return build


def drm(build: LinuxBuild, path: str, number: int) -> None:
    build.directories[f"{path}/drm"] = [f"card{number}", f"renderD{128 + number}"]


def regions(build: LinuxBuild, path: str, *sizes: int) -> None:
    """Regions of these sizes, and six empty ones."""
    lines = [f"0x{1 << 40 | place << 36:016x} 0x{(1 << 40 | place << 36) + size - 1:016x} 0x000000000014220c"
             for place, size in enumerate(sizes)]  # fmt: skip
    build.files[f"{path}/resource"] = (
        "\n".join([*lines, *["0x0000000000000000 " * 2 + "0x0000000000000000"] * 6]) + "\n"
    )


def nodes(build: LinuxBuild, **groups: str) -> None:
    """Files in ``/dev``, an underscore for each slash, each with its group; for everybody where that is root."""
    paths = {f"/dev/{name.replace('_', '/', 1) if name.startswith('dri') else name.replace('_', '-')}": group
             for name, group in groups.items()}  # fmt: skip
    build.commands[NODES] = "".join(
        f"{path} {'666' if group == 'root' else '660'} {group} usable\n" for path, group in sorted(paths.items())
    )


def nvidia(build: LinuxBuild, version: str) -> None:
    build.loaded("nvidia", "nvidia_uvm", taint="OE")
    build.files[f"{NVIDIA_PROC}/version"] = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {build.files['/proc/sys/kernel/arch'].strip()}  {version}  "
        "Release Build  (dvs-builder@U22-I3-B17-02-3)  Wed Jan 21 18:27:01 UTC 2026\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
    )


def nvidia_gpu(build: LinuxBuild, address: str, model: str, minor: int, firmware: str) -> None:
    build.files[f"{NVIDIA_PROC}/gpus/{address}/information"] = (
        f"Model: \t\t {model}\nIRQ:   \t\t {100 + minor}\nGPU UUID: \t GPU-00000000-0000-0000-0000-00000000000{minor}\n"
        "Video BIOS: \t 94.02.42.00.a9\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {address}\nDevice Minor: \t {minor}\nGPU Firmware: \t {firmware}\nGPU Excluded:\t No\n"
    )


def strix_halo() -> LinuxBuild:
    """128 GB of which the GPU may have 120 GiB."""
    build = box(
        "AMD Strix Halo: Radeon 8060S, 128 GB unified, ROCm, the GTT limit raised", "halo", *AMD_DOCUMENTS,
        release=FEDORA, kernel="6.18.8-200.fc43.x86_64", memory_kb=131_072_000, cpus=32,
        product=("Framework", "Desktop (AMD Ryzen AI Max 300 Series)"),
        cpu="AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
        command_line="BOOT_IMAGE=redacted root=redacted ro iommu=pt ttm.pages_limit=31457280",
    )  # fmt: skip
    build.loaded("amdgpu", "ttm")
    build.pci("", "0000:00:08.1", "0x060400", (0x1022, 0x150B), now=(16.0, 16), most=(16.0, 16), iommu="identity")
    gpu = build.pci(
        "0000:00:08.1", "0000:c3:00.0", "0x038000", (0x1002, 0x1586), now=(16.0, 16), most=(16.0, 16), driver="amdgpu"
    )
    drm(build, gpu, 0)
    regions(build, gpu, GIB // 2, 2 << 20)
    build.put(gpu, mem_info_vram_total=GIB // 2, mem_info_gtt_total=120 * GIB, power_dpm_force_performance_level="auto")
    build.put(f"{gpu}/fw_version", mes_fw_version="0x00000088")
    build.put(KFD.rpartition("/")[0], generation_id=2)
    build.files[f"{KFD}/0/properties"] = "cpu_cores_count 32\nsimd_count 0\ngfx_target_version 0\ndrm_render_minor 0\n"
    build.files[f"{KFD}/1/properties"] = (
        "cpu_cores_count 0\nsimd_count 80\ngfx_target_version 110501\nvendor_id 4098\ndevice_id 5510\n"
        "location_id 49920\ndomain 0\ndrm_render_minor 128\n"
    )
    build.files[TTM_PAGES] = "31457280\n"
    build.files[GTT_SIZE] = "-1\n"
    build.files[NO_RETRY] = "-1\n"
    nodes(build, kfd="render", dri_renderD128="render")
    build.commands[TORCH] = "version 2.10.0+rocm7.1\nhip 7.1.25424\n"
    return build


def dgx_spark() -> LinuxBuild:
    """Its tool tells no memory: it is the host's."""
    build = box(
        "NVIDIA DGX Spark: GB10, 128 GB unified, CUDA 13", "spark", *NVIDIA_DOCUMENTS, *SPARK_DOCUMENTS,
        kernel="6.17.0-1008-nvidia", memory_kb=127_600_748, cpus=20, arch="aarch64", cpu=None,
        product=("NVIDIA", "NVIDIA_DGX_Spark"), secure_boot=True,
    )  # fmt: skip
    nvidia(build, "580.126.09")
    build.pci("", "000f:00:00.0", "0x060400", (0x10DE, 0x22D1), iommu="DMA-FQ")
    gpu = build.pci("000f:00:00.0", "000f:01:00.0", "0x030000", (0x10DE, 0x2E12), driver="nvidia")
    drm(build, gpu, 1)
    nvidia_gpu(build, "000f:01:00.0", "NVIDIA GB10", 0, "580.126.09")
    build.commands[NVIDIA_SMI] = "0000000F:01:00.0, 12.1, [N/A], Enabled, [N/A], [N/A]\n"
    nodes(build, nvidia0="root", nvidiactl="root", nvidia_uvm="root", dri_renderD129="render")
    build.commands[TORCH] = "version 2.10.0+cu130\ncuda 13.0\n"
    return build


def two_3090() -> LinuxBuild:
    """The board gives each slot eight lanes, and the cards rest at PCIe 1.0."""
    build = box(
        "PC with two GeForce RTX 3090 in slots of eight lanes", "pair", *NVIDIA_DOCUMENTS,
        "NVIDIA Ampere GA102 architecture (24 GB, PCIe 4.0 x16, compute capability 8.6)",
        kernel="6.14.0-37-generic", memory_kb=131_072_000,
    )  # fmt: skip
    nvidia(build, "580.95.05")
    for number in (0, 1):
        root, address = f"0000:00:01.{1 + number}", f"0000:0{1 + number}:00.0"
        build.pci("", root, "0x060400", (0x1022, 0x14DB), now=(2.5, 8), most=(32.0, 8), iommu="identity")
        gpu = build.pci(
            root, address, "0x030000", (0x10DE, 0x2204), now=(2.5, 8), most=(16.0, 16), driver="nvidia"
        )  # fmt: skip
        drm(build, gpu, number)
        regions(build, gpu, 16 << 20, 32 * GIB)
        nvidia_gpu(build, address, "NVIDIA GeForce RTX 3090", number, "580.95.05")
    build.commands[NVIDIA_SMI] = (
        "00000000:01:00.0, 8.6, 24576, Disabled, 350.00, 350.00\n"  # MiB, watts
        "00000000:02:00.0, 8.6, 24576, Disabled, 350.00, 350.00\n"
    )
    nodes(build, nvidia0="root", nvidia1="root", nvidiactl="root", nvidia_uvm="root", dri_renderD128="render")
    build.commands[TORCH] = "version 2.10.0+cu128\ncuda 12.8\n"
    return build


def arc_b580() -> LinuxBuild:
    """The GPU lies behind two bridges of its card, and tells a link that is none."""
    build = box(
        "PC with an Intel Arc B580", "arc", *ARC_DOCUMENTS, kernel="6.17.0-14-generic", memory_kb=65_500_000
    )  # fmt: skip
    build.loaded("xe")
    build.pci("", "0000:00:01.1", "0x060400", (0x1022, 0x14DB), now=(16.0, 8), most=(32.0, 16), iommu="identity")
    build.pci("0000:00:01.1", "0000:01:00.0", "0x060400", (0x8086, 0xE2FF), now=(16.0, 8), most=(16.0, 8))
    inside = "0000:00:01.1/0000:01:00.0"
    build.pci(inside, "0000:02:01.0", "0x060400", (0x8086, 0xE2F0), now=(2.5, 1), most=(2.5, 1))
    gpu = build.pci(
        f"{inside}/0000:02:01.0", "0000:03:00.0", "0x030000", (0x8086, 0xE20B), now=(2.5, 1), most=(2.5, 1),
        driver="xe",
    )  # fmt: skip
    drm(build, gpu, 0)
    regions(build, gpu, 16 << 20, 16 * GIB)
    nodes(build, dri_renderD128="render")
    build.commands[TORCH] = "version 2.10.0+xpu\nxpu 20250302\n"
    return build


def trees() -> dict[str, LinuxBuild]:
    return {
        "gpu-strix-halo": strix_halo(),
        "gpu-dgx-spark": dgx_spark(),
        "gpu-two-3090": two_3090(),
        "gpu-arc-b580": arc_b580(),
    }


def faulty(name: str, change: Callable[[LinuxBuild], None]) -> Callable[[], list[Inventory]]:
    """Reader of that machine with a fault."""

    def made() -> list[Inventory]:
        build = trees()[name]
        change(build)
        return [probe_of(name, build.record()).inventory()]

    return made


def bound(build: LinuxBuild, address: str, driver: str | None) -> None:
    """Another driver on the device, or none."""
    path = build.links[f"{PCI}/{address}"]
    del build.links[f"{path}/driver"]
    if driver is not None:
        build.links[f"{path}/driver"] = f"/sys/bus/pci/drivers/{driver}"


def attribute(build: LinuxBuild, address: str, name: str, value: object) -> None:
    path = f"{build.links[f'{PCI}/{address}']}/{name}"
    assert path in build.files
    build.files[path] = f"{value}\n"


def told(build: LinuxBuild, command: str, old: str, new: str) -> None:
    assert old in build.commands[command]
    build.commands[command] = build.commands[command].replace(old, new)


def old_driver(build: LinuxBuild) -> None:
    path = f"{NVIDIA_PROC}/version"
    build.files[path] = build.files[path].replace("580.95.05", "470.256.02")


def mi300(build: LinuxBuild) -> None:
    """The GPU is one that knows XNACK, and amdgpu was told to leave it off."""
    path = f"{KFD}/1/properties"
    build.files[path] = build.files[path].replace("110501", "90402")
    build.files[NO_RETRY] = "1\n"


def translated(build: LinuxBuild) -> None:
    build.links[f"{build.links[f'{PCI}/{HALO_GPU}']}/iommu_group"] = "/sys/kernel/iommu_groups/9"
    build.put("/sys/kernel/iommu_groups/9", type="DMA-FQ")


HALO, SPARK, PAIR, ARC = "gpu-strix-halo", "gpu-dgx-spark", "gpu-two-3090", "gpu-arc-b580"
HALO_GPU, CARD, ARC_GPU = "0000:c3:00.0", "0000:01:00.0", "0000:03:00.0"
RADEON, FIRST = "Radeon 8060S (Strix Halo) (0000:c3:00.0)", "NVIDIA GeForce RTX 3090 (0000:01:00.0)"
FAULTS = [
    ("gpu-node-missing", "error", RADEON, "--device /dev/kfd",
     faulty(HALO, lambda build: told(build, NODES, "/dev/kfd 660 render usable\n", ""))),
    ("gpu-node-missing", "error", "NVIDIA GB10 (000f:01:00.0)", "sudo nvidia-modprobe -u -c 0",
     faulty(SPARK, lambda build: told(build, NODES, "/dev/nvidia-uvm 666 root usable\n", ""))),
    ("gpu-no-access", "error", RADEON, 'sudo usermod -aG render "$USER"',
     faulty(HALO, lambda build: told(build, NODES, "usable", "refused"))),
    ("gpu-no-access", "error", f"Arc B580 ({ARC_GPU})", 'sudo usermod -aG video "$USER"',
     faulty(ARC, lambda build: told(build, NODES, "render usable", "video refused"))),
    ("gpu-no-driver", "error", RADEON, "sudo modprobe amdgpu",
     faulty(HALO, lambda build: bound(build, HALO_GPU, None))),
    ("gpu-no-driver", "error", f"Arc B580 ({ARC_GPU})", "vfio-pci",
     faulty(ARC, lambda build: bound(build, ARC_GPU, "vfio-pci"))),
    ("gpu-nouveau", "error", FIRST, "sudo ubuntu-drivers install",
     faulty(PAIR, lambda build: bound(build, CARD, "nouveau"))),
    ("gpu-driver-old", "error", FIRST, "a torch for CUDA 11", faulty(PAIR, old_driver)),
    ("gpu-driver-old", "error", FIRST, "sudo ubuntu-drivers install",
     faulty(PAIR, lambda build: (old_driver(build), told(build, TORCH, "cuda 12.8", "cuda 13.0"))[0])),
    ("torch-cpu-build", "warning", "torch", "install that for CUDA",
     faulty(SPARK, lambda build: told(build, TORCH, "2.10.0+cu130\ncuda 13.0", "2.10.0+cpu"))),
    ("torch-other-gpu", "warning", "torch", "install that for XPU",
     faulty(ARC, lambda build: told(build, TORCH, "2.10.0+xpu\nxpu 20250302", "2.10.0+rocm7.1\nhip 7.1.25424"))),
    ("gpu-gtt-small", "warning", RADEON, "--args=ttm.pages_limit=30670848",
     faulty(HALO, lambda build: attribute(build, HALO_GPU, "mem_info_gtt_total", 62 * GIB))),
    ("gpu-power-low", "warning", RADEON, "echo auto | sudo tee",
     faulty(HALO, lambda build: attribute(build, HALO_GPU, "power_dpm_force_performance_level", "low"))),
    ("gpu-firmware-bad", "error", RADEON, "sudo dnf upgrade amd-gpu-firmware",
     faulty(HALO, lambda build: attribute(build, HALO_GPU, "fw_version/mes_fw_version", "0x00000083"))),
    ("gpu-kernel-old", "note", RADEON, "6.18.4",
     faulty(HALO, lambda build: build.put("/proc/sys/kernel", osrelease="6.17.8-300.fc43.x86_64"))),
    ("gpu-bar-small", "warning", f"Arc B580 ({ARC_GPU})", "Above 4G Decoding",
     faulty(ARC, lambda build: regions(build, build.links[f"{PCI}/{ARC_GPU}"], 16 << 20, 256 << 20))),
    ("gpu-no-driver", "error", f"Arc B580 ({ARC_GPU})", "sudo modprobe xe",
     faulty(ARC, lambda build: bound(build, ARC_GPU, "i915"))),
    ("gpu-power-low", "note", FIRST, "sudo nvidia-smi -i 0000:01:00.0 -pl 350",
     faulty(PAIR, lambda build: told(build, NVIDIA_SMI, "Disabled, 350.00", "Disabled, 200.00"))),
    ("torch-rocm-old", "warning", RADEON, "Install torch 2.10 or newer",
     faulty(HALO, lambda build: told(build, TORCH, "2.10.0+rocm7.1\nhip 7.1.25424", "2.9.1+rocm6.4\nhip 6.4.43482"))),
    ("gpu-xnack-off", "note", RADEON, "HSA_XNACK=1", faulty(HALO, mi300)),
    ("gpu-iommu", "note", RADEON, "--args=iommu=pt", faulty(HALO, translated)),
    ("pcie-downgraded", "warning", ARC_GPU, "clicks",
     faulty(ARC, lambda build: attribute(build, CARD, "current_link_width", 4))),
]  # fmt: skip
"""Of each fault: the finding, its severity and subject, a part of its cure, and the machine."""
