"""Linux machines as people have them: what is known of each from public documents."""

from __future__ import annotations

from tree_builder import RDMA_DOCUMENTS, THUNDERBOLT_DOCUMENTS, LinuxBuild

from ferrule.links.linux.addresses import ADDRESS, ROUTES
from ferrule.links.linux.machine import SYSTEMCTL

FEDORA = {"NAME": "Fedora Linux", "PRETTY_NAME": "Fedora Linux 43 (Server Edition)", "ID": "fedora", "VERSION_ID": "43"}
DEBIAN = {"PRETTY_NAME": "Debian GNU/Linux 13 (trixie)", "ID": "debian", "VERSION_ID": "13"}
UBUNTU = {"PRETTY_NAME": "Ubuntu 24.04.3 LTS", "ID": "ubuntu", "ID_LIKE": "debian", "VERSION_ID": "24.04"}
ALPINE = {"PRETTY_NAME": "Alpine Linux v3.22", "ID": "alpine", "VERSION_ID": "3.22.1"}

STRIX_IDS = {  # unique ids of the two USB4 controllers of each host
    "a": ("5a1d0780-0000-0a01-ffff-ffffffffff01", "5a1d0780-0000-0a02-ffff-ffffffffff02"),
    "b": ("7b2e0780-0000-0b01-ffff-ffffffffff01", "7b2e0780-0000-0b02-ffff-ffffffffff02"),
}


def strix_halo(me: str, other: str) -> LinuxBuild:
    """Two Framework Desktops on two USB4 cables. The second cable came up with 10 Gb/s per lane from a to b."""
    build = LinuxBuild(
        f"AMD Strix Halo, host {me} of a pair on two USB4 cables: 2×20/2×20 and 2×20/2×10 Gb/s",
        *THUNDERBOLT_DOCUMENTS,
        "Linux drivers/thunderbolt/xdomain.c (names and units of an XDomain's attributes)",
        "community.frame.work: lspci output of the Framework Desktop",
        "Current kernels tell one speed for both directions; rx and tx differ here as the ABI document allows.",
    )
    number = 1 if me == "a" else 2
    build.machine(
        f"strix-{me}",
        os_release=FEDORA,
        kernel="6.17.8-300.fc43.x86_64",
        product=("Framework", "Desktop (AMD Ryzen AI Max 300 Series)"),
        cpu="AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
        cpus=32,
        memory_kb=131_072_000,
        command_line="BOOT_IMAGE=redacted root=redacted ro iommu=pt amdgpu.gttsize=redacted",
        secure_boot=me == "b",
        active=("NetworkManager", "firewalld", "chronyd", "bolt"),
        available=("thunderbolt", "thunderbolt_net", "mlx5_core", "mlx5_ib", "ib_core", "rdma_rxe", "siw", "r8169"),
    )
    build.loaded("thunderbolt", "thunderbolt_net", "r8169", "mt7925e", "nf_tables")
    build.put("/sys/module/thunderbolt/parameters", host_reset="Y", clx="Y")
    build.pci("", "0000:00:02.1", "0x060400", (0x1022, 0x1509), now=(8.0, 1), most=(16.0, 1), iommu="identity")
    build.pci("", "0000:00:02.3", "0x060400", (0x1022, 0x1509), now=(5.0, 1), most=(16.0, 1), iommu="identity")
    build.pci("", "0000:00:08.3", "0x060400", (0x1022, 0x150C), now=(16.0, 16), most=(16.0, 16), iommu="identity")
    wired = build.pci(
        "0000:00:02.1", "0000:bf:00.0", "0x020000", (0x10EC, 0x8126), now=(8.0, 1), most=(8.0, 1),
        driver="r8169", iommu="identity",
    )  # fmt: skip
    wifi = build.pci(
        "0000:00:02.3", "0000:c0:00.0", "0x028000", (0x14C3, 0x7925), now=(5.0, 1), most=(5.0, 1),
        driver="mt7925e", iommu="identity",
    )  # fmt: skip
    build.loopback()
    build.netdev(
        "enp191s0", wired, addresses=(f"192.168.1.2{number}/24", f"fe80::a1:{number}/64"), speed=5000,
        mac=f"02:5e:00:00:0{number}:01", gateway="192.168.1.1",
    )  # fmt: skip
    build.netdev(
        "wlp192s0", wifi, wifi=True, up=me == "b", mac=f"02:5e:00:00:0{number}:02", metric=600,
        addresses=("192.168.1.62/24",) if me == "b" else (), gateway="192.168.1.1" if me == "b" else None,
    )  # fmt: skip
    # From a to b the second cable does 2×10, and b sees the same the other way round.
    slow = {"tx": (10, 2)} if me == "a" else {"rx": (10, 2)}
    for cable in (0, 1):
        nhi = build.pci(
            "0000:00:08.3", f"0000:c7:00.{5 + cable}", "0x0c0340", (0x1022, 0x158D + cable), now=(16.0, 16),
            most=(16.0, 16), driver="thunderbolt", iommu="DMA-FQ",
        )  # fmt: skip
        service = build.thunderbolt(
            cable, nhi, port=2, identity=STRIX_IDS[me][cable], device=("AMD", "Strix Halo USB4 Host Router"),
            peer=(f"strix-{other}", STRIX_IDS[other][cable]), **(slow if cable else {}),
        )  # fmt: skip
        build.retimer(cable, nhi, 2, 1)
        build.netdev(
            f"thunderbolt{cable}", service, addresses=(f"10.77.{cable}.{number}/24",), mtu=1500 if cable else 65520,
            mac=f"02:5e:00:00:0{number}:1{cable}",
        )  # fmt: skip
    return build


def connectx3() -> LinuxBuild:
    """A card for eight lanes behind an adapter for M.2 or OcuLink, which has four; without a subnet manager."""
    build = LinuxBuild(
        "PC with a ConnectX-3 InfiniBand card (PCIe 3.0 x8) on an M.2/OcuLink adapter of four lanes, no subnet manager",
        *RDMA_DOCUMENTS,
        "Mellanox ConnectX-3 VPI adapter cards user manual (lanes, rates)",
    )
    build.machine(
        "m2-host",
        os_release=DEBIAN,
        kernel="6.12.57+deb13-amd64",
        product=("Micro Computer (HK) Tech Limited", "UM890 Pro"),
        cpu="AMD Ryzen 9 8945HS w/ Radeon 780M Graphics",
        cpus=16,
        memory_kb=65_000_000,
        memlock="unlimited",
        active=("systemd-networkd", "systemd-timesyncd"),
        available=("mlx4_core", "mlx4_en", "mlx4_ib", "ib_core", "ib_ipoib", "ib_uverbs", "thunderbolt"),
    )
    build.loaded("mlx4_core", "mlx4_ib", "ib_core", "ib_uverbs", "ib_ipoib", "igc")
    build.pci("", "0000:00:01.2", "0x060400", (0x1022, 0x14EE), now=(8.0, 4), most=(16.0, 4), iommu="DMA-FQ")
    build.pci("", "0000:00:02.1", "0x060400", (0x1022, 0x14EE), now=(5.0, 1), most=(16.0, 1), iommu="DMA-FQ")
    card = build.pci(
        "0000:00:01.2", "0000:01:00.0", "0x028000", (0x15B3, 0x1003), now=(8.0, 4), most=(8.0, 8),
        driver="mlx4_core", iommu="DMA-FQ",
    )  # fmt: skip
    wired = build.pci(
        "0000:00:02.1", "0000:02:00.0", "0x020000", (0x8086, 0x125C), now=(5.0, 1), most=(5.0, 1),
        driver="igc", iommu="DMA-FQ",
    )  # fmt: skip
    build.loopback()
    build.netdev(
        "enp2s0", wired, addresses=("192.168.1.30/24",), speed=2500, mac="02:5e:00:00:03:01", gateway="192.168.1.1"
    )
    for port in (0, 1):
        mac = f"80:00:02:0{8 + port}:fe:80:00:00:00:00:00:00:02:5e:00:03:00:00:00:0{port + 1}"
        name = "ibp1s0d1" if port else "ibp1s0"
        build.netdev(name, card, up=False, mtu=4092, mac=mac, kind=32, port=port)
    device = build.rdma("ibp1s0", card, hca="MT4099", board="MT_1090120019", firmware="2.42.5000")
    gids = (("fe80::25e:3:0:1", "IB/RoCE v1", ""),)
    build.rdma_port(device, 1, state="2: INIT", rate="40 Gb/sec (4X FDR10)", layer="InfiniBand", gids=gids)
    build.rdma_port(device, 2, state="1: DOWN", rate="10 Gb/sec (4X SDR)", layer="InfiniBand")
    return build


def e810() -> LinuxBuild:
    """Everything as it should be, but little memory may be pinned."""
    build = LinuxBuild(
        "Server with an Intel E810-C 100 Gb/s card, RoCE v2 by irdma",
        *RDMA_DOCUMENTS,
        "Intel irdma README (RoCE v2 as the default, GIDs)",
    )
    build.machine(
        "e810-host",
        os_release=UBUNTU,
        kernel="6.8.0-87-generic",
        product=("Supermicro", "AS -1015CS-TNR"),
        cpu="AMD EPYC 9354 32-Core Processor",
        cpus=64,
        memory_kb=396_000_000,
        command_line="BOOT_IMAGE=redacted root=redacted ro iommu=pt",
        active=("systemd-networkd", "ufw", "chrony"),
        available=("ice", "irdma", "ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib"),
    )
    build.loaded("ice", "irdma", "ib_core", "ib_uverbs", "rdma_cm", "ixgbe")
    build.pci("", "0000:40:01.1", "0x060400", (0x1022, 0x14AB), now=(16.0, 16), most=(32.0, 16), iommu="identity")
    card = build.pci(
        "0000:40:01.1", "0000:41:00.0", "0x020000", (0x8086, 0x1592), now=(16.0, 16), most=(16.0, 16),
        driver="ice", iommu="identity",
    )  # fmt: skip
    build.loopback()
    build.netdev(
        "enp65s0f0np0", card, addresses=("10.10.0.1/24", "fe80::25e:4/64"), speed=100_000, mtu=9000,
        mac="02:5e:00:00:04:01", gateway="10.10.0.254",
    )  # fmt: skip
    device = build.rdma("rocep65s0f0", card, hca="", board="", firmware="1.73")
    gids = (("fe80::25e:4", "RoCE v2", "enp65s0f0np0"), ("::ffff:10.10.0.1", "RoCE v2", "enp65s0f0np0"))
    build.rdma_port(device, 1, state="4: ACTIVE", rate="100 Gb/sec (4X EDR)", layer="Ethernet", gids=gids)
    build.flow_control("enp65s0f0np0", pause="off")
    return build


def dgx_spark() -> LinuxBuild:
    """Each socket is two PCIe devices of four lanes: neither alone can carry what the port does."""
    build = LinuxBuild(
        "NVIDIA DGX Spark: ConnectX-7 at 200 Gb/s behind two PCIe 5.0 links of four lanes",
        *RDMA_DOCUMENTS,
        "forums.developer.nvidia.com 367853 (PCIe capability and status of all four functions)",
        "servethehome.com, The NVIDIA GB10 ConnectX-7 200GbE networking is really different",
        "docs.nvidia.com DGX Spark user guide (names of the interfaces)",
    )
    build.machine(
        "spark-1",
        os_release={**UBUNTU, "PRETTY_NAME": "Ubuntu 24.04.3 LTS"},
        kernel="6.14.0-1013-nvidia",
        product=("NVIDIA", "NVIDIA_DGX_Spark"),
        cpu=None,
        cpus=20,
        memory_kb=125_500_000,
        arch="aarch64",
        memlock="16777216",
        secure_boot=True,
        active=("NetworkManager", "systemd-timesyncd"),
        available=("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs"),
    )
    build.loaded("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "rdma_cm", "mt7925e")
    build.loaded("nvidia", taint="OE")
    build.loopback()
    for domain in ("0000", "0002"):
        root = f"{domain}:00:00.0"
        build.pci("", root, "0x060400", (0x10DE, 0x22CE), now=(32.0, 4), most=(32.0, 4), iommu="DMA-FQ")
        for port in (0, 1):
            home = build.pci(
                root, f"{domain}:01:00.{port}", "0x020000", (0x15B3, 0x1021), now=(32.0, 4), most=(32.0, 4),
                driver="mlx5_core", iommu="DMA-FQ",
            )  # fmt: skip
            path = "P2" if domain == "0002" else ""
            netdev, up = f"en{path}p1s0f{port}np{port}", port == 0
            subnet = 100 if not path else 101
            address = f"192.168.{subnet}.10"
            build.netdev(
                netdev, home, addresses=(f"{address}/24", f"fe80::25e:5{subnet - 100}/64") if up else (), up=up,
                speed=200_000, mtu=9000, mac=f"02:5e:00:00:05:{subnet - 100}{port}",
            )  # fmt: skip
            device = build.rdma(
                f"roce{path}p1s0f{port}", home, hca="MT4129", board="NVD0000000087", firmware="28.45.4028"
            )
            kinds = ("IB/RoCE v1", "RoCE v2")
            texts = (f"fe80::25e:5{subnet - 100}", f"::ffff:{address}")
            gids = tuple((text, kind, netdev) for text in texts for kind in kinds) if up else ()
            state, rate = ("4: ACTIVE", "200 Gb/sec (4X HDR)") if up else ("1: DOWN", "40 Gb/sec (4X QDR)")
            build.rdma_port(device, 1, state=state, rate=rate, layer="Ethernet", gids=gids)
            build.flow_control(netdev, pause="off" if path else "on", pfc="off")
    build.pci("", "0007:00:00.0", "0x060400", (0x10DE, 0x22D0), now=(16.0, 1), most=(16.0, 1), iommu="DMA-FQ")
    wired = build.pci(
        "0007:00:00.0", "0007:01:00.0", "0x020000", (0x10EC, 0x8127), now=(16.0, 1), most=(16.0, 1), driver="r8127"
    )
    build.netdev("enP7s7", wired, addresses=("192.168.1.50/24",), speed=1000, mac="02:5e:00:00:05:51", up=True)
    build.pci("", "0009:00:00.0", "0x060400", (0x10DE, 0x22D0), now=(5.0, 1), most=(16.0, 1), iommu="DMA-FQ")
    wifi = build.pci(
        "0009:00:00.0", "0009:01:00.0", "0x028000", (0x14C3, 0x7925), now=(5.0, 1), most=(5.0, 1), driver="mt7925e"
    )
    build.netdev("wlP9s9", wifi, wifi=True, addresses=("192.168.1.51/24",), mac="02:5e:00:00:05:52", metric=600,
                 gateway="192.168.1.1")  # fmt: skip
    return build


def pc() -> LinuxBuild:
    """An ordinary PC."""
    build = LinuxBuild("PC with 2.5 Gb/s Ethernet and nothing else")
    build.machine(
        "pc",
        os_release=UBUNTU,
        kernel="6.8.0-87-generic",
        product=("ASUS", "System Product Name"),
        cpu="AMD Ryzen 7 7700X 8-Core Processor",
        cpus=16,
        memory_kb=65_500_000,
        available=("thunderbolt", "thunderbolt_net", "mlx4_core", "mlx5_core", "r8169"),
    )
    build.loaded("r8169")
    build.loaded("nvidia", taint="POE")
    build.pci("", "0000:00:02.1", "0x060400", (0x1022, 0x14DB), now=(5.0, 1), most=(16.0, 1), iommu="DMA-FQ")
    wired = build.pci(
        "0000:00:02.1", "0000:08:00.0", "0x020000", (0x10EC, 0x8125), now=(5.0, 1), most=(5.0, 1),
        driver="r8169", iommu="DMA-FQ",
    )  # fmt: skip
    build.loopback()
    build.netdev(
        "enp8s0", wired, addresses=("192.168.1.40/24", "fe80::25e:6/64"), speed=2500, mac="02:5e:00:00:06:01",
        gateway="192.168.1.1",
    )  # fmt: skip
    return build


def wifi_only() -> LinuxBuild:
    """No systemd and no iproute2: addresses and routes come from procfs."""
    build = LinuxBuild("Notebook with Wi-Fi only, on Alpine (no iproute2, no systemd)")
    build.machine(
        "notebook",
        os_release=ALPINE,
        kernel="6.12.57-0-lts",
        product=("LENOVO", "21HMCTO1WW"),
        cpu="13th Gen Intel(R) Core(TM) i7-1365U",
        cpus=12,
        memory_kb=32_500_000,
        secure_boot=None,
        synchronized=False,
    )
    build.loaded("iwlwifi", "iwlmvm")
    build.pci("", "0000:00:1c.0", "0x060400", (0x8086, 0x51B8), now=(5.0, 1), most=(8.0, 1), iommu="DMA-FQ")
    wifi = build.pci(
        "0000:00:1c.0", "0000:09:00.0", "0x028000", (0x8086, 0x2725), now=(5.0, 1), most=(5.0, 1),
        driver="iwlwifi", iommu="DMA-FQ",
    )  # fmt: skip
    build.loopback()
    build.netdev("wlan0", wifi, wifi=True, addresses=("192.168.1.70/24",), mac="02:5e:00:00:07:01", rx_dropped=214)
    for command in (ADDRESS, *ROUTES, SYSTEMCTL):
        del build.commands[command]
    build.files["/proc/net/route"] = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
        "wlan0\t0001A8C0\t00000000\t0001\t0\t0\t600\t00FFFFFF\t0\t0\t0\n"
    )
    build.files["/proc/net/if_inet6"] = (
        "00000000000000000000000000000001 01 80 10 80       lo\nfe80000000000000000000000000025e 02 40 20 80    wlan0\n"
    )
    build.files["/proc/net/fib_trie"] = (
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.168.1.0\n"
        "        /24 link UNICAST\n     |-- 192.168.1.70\n        /32 host LOCAL\n     |-- 192.168.1.255\n"
        "        /32 link BROADCAST\n"
    )
    return build


def trees() -> dict[str, LinuxBuild]:
    return {
        "strix-halo-a": strix_halo("a", "b"),
        "strix-halo-b": strix_halo("b", "a"),
        "connectx3-m2": connectx3(),
        "e810-roce": e810(),
        "dgx-spark": dgx_spark(),
        "pc-2.5gbe": pc(),
        "wifi-only": wifi_only(),
    }
