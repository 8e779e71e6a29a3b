"""Results of discovery on each recorded machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from build_trees import TREES, records
from linux_trees import pc, wifi_only
from tree_builder import LinuxBuild, probe_of

from ferrule.links import Inventory, Probe
from ferrule.links.linux.addresses import ADDRESS
from ferrule.links.linux.machine import SYSTEMCTL, UNITS
from ferrule.links.types.net import NetAddress, NetManager, Route


@cache
def read(name: str) -> Inventory:
    return Probe.recorded(TREES / f"{name}.json").inventory()


def test_the_records_are_what_their_builder_writes_and_all_of_them() -> None:
    built = records()
    assert {path.stem: path.read_text() for path in TREES.glob("*.json")} == built


@pytest.mark.parametrize("name", sorted(records()))
def test_nothing_in_a_record_is_unreadable(name: str) -> None:
    inventory = read(name)
    assert inventory.unreadable == ()
    assert inventory.machine.memory_bytes
    assert inventory.machine.kernel
    assert inventory.machine.tree == f"{name}.json"


def test_strix_halo_pair_both_ends_tell_the_same_of_both_cables() -> None:
    a, b = read("strix-halo-a"), read("strix-halo-b")
    speeds = [
        [(one.port, one.rx_lanes, one.rx_speed_gb_s, one.tx_lanes, one.tx_speed_gb_s) for one in end.peers]
        for end in (a, b)
    ]
    assert speeds == [
        [("usb4_port2", 2, 20.0, 2, 20.0), ("usb4_port2", 2, 20.0, 2, 10.0)],
        [("usb4_port2", 2, 20.0, 2, 20.0), ("usb4_port2", 2, 10.0, 2, 20.0)],
    ]
    for here, there in ((a, b), (b, a)):
        assert [one.identity for one in here.peers] == [
            domain.host.identity for domain in there.thunderbolt if domain.host
        ]
        assert {one.device for one in here.peers} == {there.machine.name}
        assert [one.netdevs for one in here.peers] == [("thunderbolt0",), ("thunderbolt1",)]
        assert all([service.key for service in one.services] == ["network"] for one in here.peers)


def test_strix_halo_controllers() -> None:
    inventory = read("strix-halo-a")
    first, second = inventory.thunderbolt
    assert (first.name, first.pci_address) == ("domain0", "0000:c7:00.5")
    assert (second.security, second.iommu_dma_protection) == ("user", True)
    assert first.host is not None
    assert (first.host.generation, first.host.device) == (4, "Strix Halo USB4 Host Router")
    assert [(one.name, one.link, one.connected) for one in first.ports] == [("usb4_port2", "usb4", True)]
    assert [(one.name, one.firmware) for one in first.retimers] == [("0-0:2.1", "8.3")]
    assert first.rings is not None
    assert first.rings.vectors == 16
    assert ("thunderbolt_net.e2e", "Y") in first.rings.parameters
    assert first.devices == ()


def test_strix_halo_interfaces_and_system() -> None:
    inventory = read("strix-halo-a")
    kinds = {one.name: one.kind for one in inventory.netdevs}
    assert kinds == {
        "enp191s0": "ethernet",
        "lo": "loopback",
        "thunderbolt0": "thunderbolt",
        "thunderbolt1": "thunderbolt",
        "wlp192s0": "wifi",
    }
    cable, wifi = inventory.netdev("thunderbolt1"), inventory.netdev("wlp192s0")
    assert cable is not None
    assert (cable.mtu, cable.driver, cable.module, cable.thunderbolt) == (
        1500,
        "thunderbolt-net",
        "thunderbolt_net",
        "1-2",
    )
    assert cable.addresses == (NetAddress("10.77.1.1", 24, "global"),)
    assert (cable.carrier, cable.speed_mbps, cable.pci_address) == (True, None, "0000:c7:00.6")
    assert wifi is not None
    assert (wifi.wireless, wifi.enabled, wifi.carrier) == (True, False, None)
    assert Route("default", "enp191s0", "192.168.1.1", None, 100) in inventory.routes
    assert {one.kind: one.active for one in inventory.firewalls} == {"firewalld": True}
    machine = inventory.machine
    assert machine.iommu is not None
    assert (machine.iommu.groups, machine.iommu.mode) == (7, "translated")
    assert machine.boot_command_line is not None
    assert "iommu=pt" in machine.boot_command_line
    assert machine.clock is not None
    assert (machine.clock.synchronized, machine.clock.service, machine.clock.offset_seconds) == (
        True,
        "chronyd",
        -0.000021,
    )
    assert (machine.secure_boot, read("strix-halo-b").machine.secure_boot) == (False, True)
    assert read("strix-halo-b").machine.lockdown == "integrity"
    assert machine.memlock_bytes == 8 << 20
    assert "thunderbolt_net" in (machine.available_modules or ())
    assert machine.module("thunderbolt-net") is not None
    link = inventory.pcie_link("0000:c7:00.5")
    assert link is not None
    assert (link.class_name, link.iommu_type, link.driver) == ("USB4 controller", "DMA-FQ", "thunderbolt")


def test_connectx3_has_half_of_its_lanes_because_the_slot_has_no_more() -> None:
    inventory = read("connectx3-m2")
    card = inventory.pcie_link("0000:01:00.0")
    assert card is not None
    assert (card.vendor, card.device, card.driver) == ("Mellanox", "ConnectX-3", "mlx4_core")
    assert (card.current_gt_s, card.current_width, card.max_gt_s, card.max_width) == (8.0, 4, 8.0, 8)
    assert card.slot is not None
    assert (card.slot.address, card.slot.max_gt_s, card.slot.max_width) == ("0000:00:01.2", 16.0, 4)


def test_connectx3_waits_for_a_subnet_manager() -> None:
    inventory = read("connectx3-m2")
    (device,) = inventory.rdma
    assert (device.firmware, device.board, device.hca_type, device.driver, device.software) == (
        "2.42.5000",
        "MT_1090120019",
        "MT4099",
        "mlx4_core",
        False,
    )
    first, second = device.ports
    assert (first.state, first.phys_state, first.sm_lid, first.link_layer) == ("INIT", "LinkUp", 0, "InfiniBand")
    assert (first.rate_gb_s, first.rate_text) == (40.0, "40 Gb/sec (4X FDR10)")
    assert (first.active_mtu, first.pkeys, first.netdevs) == (4096, ("0xffff",), ("ibp1s0",))
    assert [gid.type for gid in first.gids] == [None]
    assert (second.state, second.gids, second.netdevs) == ("DOWN", (), ("ibp1s0d1",))
    netdev = inventory.netdev("ibp1s0")
    assert netdev is not None
    assert (netdev.kind, netdev.pci_address) == ("infiniband", "0000:01:00.0")
    opensm = inventory.service("opensm")
    assert opensm is not None
    assert not opensm.active


def test_e810_speaks_roce_v2() -> None:
    inventory = read("e810-roce")
    (device,) = inventory.rdma
    (port,) = device.ports
    assert (port.state, port.link_layer, port.rate_gb_s) == ("ACTIVE", "Ethernet", 100.0)
    assert [(gid.index, gid.type, gid.netdev, gid.address) for gid in port.gids] == [
        (0, "RoCE v2", "enp65s0f0np0", "fe80::25e:4"),
        (1, "RoCE v2", "enp65s0f0np0", "10.10.0.1"),
    ]
    card = inventory.pcie_link(device.pci_address)
    assert card is not None
    assert card.current_gb_s == pytest.approx(252.06, abs=0.01)
    netdev = inventory.netdev("enp65s0f0np0")
    assert netdev is not None
    assert (netdev.speed_mbps, netdev.mtu, netdev.duplex) == (100_000, 9000, "full")


def test_dgx_spark_ports_are_faster_than_their_pcie_links() -> None:
    inventory = read("dgx-spark")
    assert inventory.machine.architecture == "aarch64"
    assert [one.address for one in inventory.pcie if one.driver == "mlx5_core"] == [
        *("0000:01:00.0", "0000:01:00.1", "0002:01:00.0", "0002:01:00.1")
    ]
    for device in inventory.rdma:
        link = inventory.pcie_link(device.pci_address)
        assert link is not None
        assert link.slot is not None
        assert (link.current_gt_s, link.current_width, link.slot.max_width) == (32.0, 4, 4)
    active = {one.name: one.ports[0] for one in inventory.rdma if one.ports[0].state == "ACTIVE"}
    assert {name: port.rate_gb_s for name, port in active.items()} == {"roceP2p1s0f0": 200.0, "rocep1s0f0": 200.0}
    assert active["rocep1s0f0"].netdevs == ("enp1s0f0np0",)
    assert [gid.address for gid in active["rocep1s0f0"].gids if gid.type == "RoCE v2"] == [
        *("fe80::25e:50", "192.168.100.10")
    ]
    nvidia = inventory.machine.module("nvidia")
    assert nvidia is not None
    assert "E" in nvidia.taint


def test_mac_studio_mesh_every_cable_is_known_from_both_ends() -> None:
    studios = [read(f"mac-studio-{number}") for number in (1, 2, 3, 4)]
    owner = {
        domain.host.identity: number
        for number, studio in enumerate(studios, 1)
        for domain in studio.thunderbolt
        if domain.host
    }
    links = {(number, owner[peer.identity]) for number, studio in enumerate(studios, 1) for peer in studio.peers}
    assert links == {(one, other) for one in range(1, 5) for other in range(1, 5) if one != other}
    for studio in studios:
        assert studio.machine.rdma_ctl == "enabled"
        assert {(peer.link_gb_s, peer.rx_gb_s) for peer in studio.peers} == {(80.0, 80.0)}
        assert all("rdma" in {service.key for service in peer.services} for peer in studio.peers)


def test_mac_studio_the_port_beside_ethernet_has_no_rdma() -> None:
    inventory = read("mac-studio-1")
    socket = inventory.thunderbolt[0].ports[0]
    assert (socket.name, socket.receptacle, socket.netdev, socket.connected) == ("Thunderbolt 1", "1", "en2", True)
    assert inventory.thunderbolt[0].peers[0].netdevs == ("en2",)
    states = {one.name: one.ports[0].state for one in inventory.rdma}
    assert states == {
        **dict.fromkeys(("rdma_en2", "rdma_en5", "rdma_en6", "rdma_en7"), "DOWN"),
        **dict.fromkeys(("rdma_en3", "rdma_en4"), "ACTIVE"),
    }
    assert inventory.rdma[0].ports[0].netdevs == ("en2",)
    empty = inventory.thunderbolt[5].ports[0]
    assert (empty.connected, empty.speed_gb_s, inventory.thunderbolt[5].peers) == (False, 120.0, ())


def test_mac_studio_interfaces() -> None:
    inventory = read("mac-studio-2")
    wired, bridge, cable = (inventory.netdev(name) for name in ("en0", "bridge0", "en3"))
    assert wired is not None
    assert (wired.kind, wired.label, wired.speed_mbps, wired.carrier) == ("ethernet", "Ethernet", 10_000, True)
    assert wired.addresses == (NetAddress("192.168.1.102", 24, "global"),)
    assert wired.counters.rx_bytes == 900_000
    assert bridge is not None
    assert (bridge.kind, bridge.members) == ("bridge", ("en2", "en3", "en4", "en5", "en6", "en7"))
    assert cable is not None
    assert (cable.kind, cable.label, cable.master, cable.thunderbolt) == (
        *("thunderbolt", "Thunderbolt 2", "bridge0", "Thunderbolt 2"),
    )
    assert Route("default", "en0", "192.168.1.1") in inventory.routes
    assert Route("127.0.0.0/8", "lo0", "127.0.0.1") in inventory.routes
    machine = inventory.machine
    assert (machine.os_version, machine.os_build, machine.product, machine.cpu, machine.cpus) == (
        *("26.2", "25C56", "Mac Studio (Mac15,14)", "Apple M3 Ultra", 32),
    )
    assert machine.memory_bytes == 512 << 30
    assert [(one.kind, one.active) for one in inventory.firewalls] == [("macos", False)]
    assert inventory.evidence("$ ibv_devinfo -v: rdma_en2") == (("$ ibv_devinfo -v: rdma_en2", "state: PORT_DOWN (1)"),)


def test_mac_mini_has_devices_that_never_become_active() -> None:
    inventory = read("mac-mini-tb4")
    (peer,) = inventory.peers
    assert (peer.link_gb_s, peer.netdevs, peer.device) == (40.0, ("en2",), "Mac16,10")
    assert [one.ports[0].state for one in inventory.rdma] == ["DOWN"] * 3
    assert [one.ports[0].speed_gb_s for one in inventory.thunderbolt] == [40.0] * 3


def test_plain_pc() -> None:
    inventory = read("pc-2.5gbe")
    assert (inventory.thunderbolt, inventory.rdma) == ((), ())
    wired = inventory.netdev("enp8s0")
    assert wired is not None
    assert (wired.speed_mbps, wired.speed_gb_s, wired.kind) == (2500, 2.5, "ethernet")


def test_wifi_only_is_read_without_iproute2_and_systemd() -> None:
    inventory = read("wifi-only")
    wifi, loopback = inventory.netdev("wlan0"), inventory.netdev("lo")
    assert wifi is not None
    assert (wifi.kind, wifi.wireless, wifi.counters.rx_dropped) == ("wifi", True, 214)
    assert wifi.addresses == (NetAddress("fe80::25e", 64, "link"), NetAddress("192.168.1.70", 24, "global"))
    assert loopback is not None
    assert loopback.addresses == (NetAddress("::1", 128, "host"), NetAddress("127.0.0.1", 8, "host"))
    assert inventory.routes == (
        Route("default", "wlan0", "192.168.1.1", None, 600),
        Route("192.168.1.0/24", "wlan0", None, None, 600),
    )
    assert inventory.services == ()
    assert inventory.machine.secure_boot is None


def test_a_dock_is_no_computer_and_one_behind_it_is() -> None:
    build = LinuxBuild("a computer behind a dock")
    build.put("/proc/sys/kernel", ostype="Linux")
    nhi = build.pci("", "0000:00:0d.2", "0x0c0340", (0x8086, 0x1137), driver="thunderbolt")
    build.thunderbolt(0, nhi, port=1, identity="host", device=("Intel", "Host"))
    dock = f"{nhi}/domain0/0-0/0-1"
    build.put(dock, authorized=1, vendor_name="CalDigit", device_name="TS4", rx_speed="20.0 Gb/s", rx_lanes=2)
    build.put(f"{dock}/0-301", vendor_name="Linux", device_name="far", rx_speed="20.0 Gb/s", rx_lanes=1, unique_id="x")
    for name, path in (("0-1", dock), ("0-301", f"{dock}/0-301")):
        build.links[f"/sys/bus/thunderbolt/devices/{name}"] = path
    (domain,) = probe_of("dock", build.record()).inventory().thunderbolt
    assert [(one.device, one.authorized, one.rx_lanes, one.route) for one in domain.devices] == [("TS4", True, 2, 1)]
    assert [(one.device, one.rx_gb_s, one.route, one.port) for one in domain.peers] == [
        ("far", 20.0, 0x301, "usb4_port1")
    ]


NETWORKD = "# This is private data. Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\n"
SOURCED = "source /etc/network/interfaces.d/*\n\nauto lo\niface lo inet loopback\n"


@pytest.mark.parametrize(
    ("active", "files", "expected"),
    [
        (["NetworkManager"], {}, NetManager("NetworkManager")),
        (
            ["NetworkManager"],
            {"/run/NetworkManager/devices/3": "[device]\nmanaged=true\n"},
            NetManager("NetworkManager"),
        ),
        (["NetworkManager"], {"/run/NetworkManager/devices/3": "[device]\nmanaged=false\n"}, None),
        (
            ["NetworkManager", "systemd-networkd"],
            {"/run/NetworkManager/devices/3": "[device]\nmanaged=false\n"},
            NetManager("systemd-networkd"),
        ),
        (["systemd-networkd"], {"/run/systemd/netif/links/3": NETWORKD}, NetManager("systemd-networkd")),
        (
            ["systemd-networkd"],
            {"/run/systemd/netif/links/3": f"{NETWORKD}NETWORK_FILE=/etc/systemd/network/lan.network\n"},
            NetManager("systemd-networkd", "/etc/systemd/network/lan.network"),
        ),
        (["systemd-networkd"], {"/etc/netplan/50-cloud-init.yaml": "network: {}\n"}, NetManager("netplan")),
        (["networking"], {"/etc/network/interfaces": SOURCED}, NetManager("ifupdown")),
        (["networking"], {"/etc/network/interfaces": "auto lo\n"}, None),
        ([], {"/etc/network/interfaces": SOURCED}, None),
        ([], {"/etc/network/interfaces": SOURCED, "/run/network/ifstate": "lo=lo\n"}, NetManager("ifupdown")),
    ],
)
def test_which_program_manages_an_interface(
    active: list[str], files: dict[str, str], expected: NetManager | None
) -> None:
    record = pc().record()
    record["commands"][SYSTEMCTL] = "".join("active\n" if one in active else "inactive\n" for one in UNITS)
    record["files"] |= {**files, f"{record['links']['/sys/class/net/enp8s0']}/ifindex": "3\n"}
    device = probe_of("pc", record).inventory().netdev("enp8s0")
    assert device is not None
    assert device.manager == expected


def test_an_ip_that_knows_no_json_is_as_good_as_none() -> None:
    record = wifi_only().record()
    whole = probe_of("wifi", record).inventory()
    broken = {**record, "errors": {**record["errors"], ADDRESS: "EIO"}}
    assert probe_of("wifi", broken).inventory() == whole


def test_a_directory_is_a_tree_too_and_its_links_stay_inside(tmp_path: Path) -> None:
    card = tmp_path / "sys/devices/pci0000:00/0000:00:01.0"
    card.mkdir(parents=True)
    (card / "class").write_text("0x020000\n")
    (card / "vendor").symlink_to("/etc/hostname")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:00:01.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/uname -m").write_text("riscv64\n")
    inventory = Probe.recorded(tmp_path).inventory()
    assert [(one.address, one.class_name, one.vendor) for one in inventory.pcie] == [
        ("0000:00:01.0", "Ethernet controller", None)
    ]
    assert inventory.machine.architecture == "riscv64"


GPUS = {
    "gpu-strix-halo": [("cuda", "Radeon 8060S (Strix Halo)", "amdgpu", None, "gfx1151", True, 120.0, (16.0, 16))],
    "gpu-dgx-spark": [("cuda", "NVIDIA GB10", "nvidia", "580.126.09", "sm_121", True, 121.7, (None, None))],
    "gpu-two-3090": [("cuda", "NVIDIA GeForce RTX 3090", "nvidia", "580.95.05", "sm_86", False, 24.0, (2.5, 8))] * 2,
    "gpu-arc-b580": [("xpu", "Arc B580", "xe", None, "bmg", False, None, (16.0, 8))],
}
"""Of each device: kind, name, driver and its version, architecture, unified, GiB (xe tells none), its card's link."""


@pytest.mark.parametrize("name", sorted(GPUS))
def test_devices(name: str) -> None:
    inventory = read(name)
    found = []
    for one in inventory.devices:
        assert one.link is not None
        memory = None if one.memory_bytes is None else round(one.memory_bytes / 2**30, 1)
        link = (one.link.current_gt_s, one.link.current_width)
        found.append((one.kind, one.name, one.driver, one.driver_version, one.architecture, one.unified, memory, link))
        for node in one.nodes:
            there = inventory.device_node(node)
            assert there is not None
            assert there.usable
    assert found == GPUS[name]
    assert inventory.torch is not None
    assert inventory.torch.runtime == {"cuda": "CUDA", "xpu": "XPU"}[found[0][0]] or inventory.torch.hip


def test_what_only_some_devices_tell() -> None:
    (halo,), cards = read("gpu-strix-halo").devices, read("gpu-two-3090").devices
    assert (halo.gtt_bytes, halo.carved_bytes, halo.scheduler_firmware) == (120 << 30, 512 << 20, 0x88)
    assert (halo.performance_level, halo.nodes) == ("auto", ("/dev/kfd", "/dev/dri/renderD128"))
    assert [(one.persistent, one.window_bytes, one.nodes[-1]) for one in cards] == [
        (False, 32 << 30, "/dev/nvidia0"),
        (False, 32 << 30, "/dev/nvidia1"),
    ]
    short = Probe.recorded(TREES / "gpu-two-3090.json").inventory(devices=False)
    assert (short.devices, short.device_nodes, short.torch, short.pcie) == ((), None, None, read("gpu-two-3090").pcie)
    assert not [where for where in short.seen if "nvidia" in where]
    assert (read("pc-2.5gbe").devices, read("pc-2.5gbe").device_nodes, read("pc-2.5gbe").torch) == ((), None, None)
