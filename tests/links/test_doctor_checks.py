"""Each finding that no recorded machine has, by changing one thing on a recorded machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from gpu_trees import ARC, FAULTS, HALO, HALO_GPU, attribute, faulty, told
from test_doctor import EXPECTED, FINDINGS, read

from ferrule.links import Finding, Inventory, RdmaDevice
from ferrule.links.doctor import diagnose, relevant
from ferrule.links.own import TORCH
from ferrule.links.types.firewall import Firewall, FirewallChain
from ferrule.links.types.inventory import Unreadable
from ferrule.links.types.machine import Clock
from ferrule.links.types.net import FlowControl, NetAddress, NetKind, NetManager
from ferrule.links.types.thunderbolt import ThunderboltRouter

change = dataclasses.replace


def net(name: str, device: str, **values: Any) -> Inventory:
    """A recorded machine with an interface changed."""
    found = read(name)
    assert found.netdev(device)
    return change(found, netdevs=tuple(change(one, **values) if one.name == device else one for one in found.netdevs))


def counted(name: str, device: str, **values: int) -> Inventory:
    one = read(name).netdev(device)
    assert one is not None
    return net(name, device, counters=change(one.counters, **values))


def machine(name: str, /, **values: Any) -> Inventory:
    return change(read(name), machine=change(read(name).machine, **values))


def domain(name: str, **values: Any) -> Inventory:
    """Its last controller changed."""
    *others, last = read(name).thunderbolt
    return change(read(name), thunderbolt=(*others, change(last, **values)))


def peer(name: str, **values: Any) -> Inventory:
    return domain(name, peers=tuple(change(one, **values) for one in read(name).thunderbolt[-1].peers))


def port(name: str, **values: Any) -> Inventory:
    """The first port of its first RDMA device changed."""
    first, *others = read(name).rdma
    ports = (change(first.ports[0], **values), *first.ports[1:])
    return change(read(name), rdma=(change(first, ports=ports), *others))


def without_module(name: str, module: str) -> Inventory:
    modules = tuple(one for one in read(name).machine.modules if one.name != module)
    return machine(name, modules=modules)


def slow_pair() -> list[Inventory]:
    slow = {"rx_speed_gb_s": 10.0, "tx_speed_gb_s": 10.0}
    return [peer("strix-halo-a", **slow), peer("strix-halo-b", **slow)]


def two_macs(build: str) -> list[Inventory]:
    return [read("mac-studio-2"), machine("mac-studio-3", os_build=build)]


def card(**values: Any) -> Inventory:
    link = read("e810-roce").pcie[0]
    return change(read("e810-roce"), pcie=(change(link, **values),))


def other_host(name: str, host: str, **values: Any) -> Inventory:
    return machine(name, name=host, **values)


def opensm(host: str) -> Inventory:
    found = other_host("connectx3-m2", host)
    services = [change(one, state="active") if one.name == "opensm" else one for one in found.services]
    return change(found, services=tuple(services))


def software(name: str, *versions: str | None) -> list[Inventory]:
    """Hosts a, b... that differ in nothing that matters but in the version of one program."""
    told = [() if version is None else ((name, version),) for version in versions]
    hosts = (other_host(PC, host, software=one) for host, one in zip("abc", told, strict=False))
    # One network each, so that only versions are left to be told.
    return [change(one, netdevs=(), routes=()) for one in hosts]


def firmware(host: str, version: str) -> Inventory:
    found = other_host("connectx3-m2", host)
    return change(found, rdma=tuple(change(one, firmware=version) for one in found.rdma))


def offset(host: str, seconds: float) -> Inventory:
    return other_host("pc-2.5gbe", host, clock=Clock(True, "chrony", seconds))


def gids(*wanted: str) -> Inventory:
    found = read("e810-roce").rdma[0].ports[0].gids
    kinds = {"v1": change(found[1], type="RoCE v1"), "v6": found[0]}
    return port("e810-roce", gids=tuple(kinds[one] for one in wanted))


def bare(name: str) -> Any:
    return without_module(name, "thunderbolt_net").machine


def few(name: str) -> Any:
    rings = read(name).thunderbolt[-1].rings
    assert rings is not None
    return change(rings, vectors=2)


def domain_40(name: str) -> Inventory:
    """A cable that came up at 40 Gb/s on a Mac that has 80 on others."""
    domains = list(read(name).thunderbolt)
    at = next(number for number, one in enumerate(domains) if one.peers)
    domains[at] = change(domains[at], peers=tuple(change(one, link_gb_s=40.0) for one in domains[at].peers))
    return change(read(name), thunderbolt=tuple(domains))


DOCK = ThunderboltRouter("1-1", "/sys/bus/thunderbolt/devices/1-1", 1, device="TS4", authorized=False)
SHUT = Firewall("nftables", True, "drop", (FirewallChain("inet filter input", hook="input", policy="drop"),), "$ nft")
STRIX, SPARK, E810, CX3, MINI, PC = (
    "strix-halo-a",
    "dgx-spark",
    "e810-roce",
    "connectx3-m2",
    "mac-mini-tb4",
    "pc-2.5gbe",
)
ELSEWHERE = (NetAddress("10.99.0.2", 24, "global"),)

CASES: list[tuple[str, str, Callable[[], list[Inventory]]]] = [
    ("cable-half-speed", "warning", slow_pair),
    ("cable-half-speed", "warning", lambda: [domain_40("mac-studio-2")]),
    ("cable-one-lane", "warning", lambda: [peer(STRIX, rx_lanes=1, tx_lanes=1, tx_speed_gb_s=20.0)]),
    ("cable-behind-dock", "warning", lambda: [peer(STRIX, route=0x301)]),
    ("thunderbolt-net-missing", "error", lambda: [change(peer(STRIX, netdevs=()), machine=bare(STRIX))]),
    ("peer-offers-no-network", "error", lambda: [peer(STRIX, netdevs=(), services=())]),
    ("thunderbolt-unauthorized", "warning", lambda: [domain(STRIX, devices=(DOCK,))]),
    ("thunderbolt-dma-open", "note", lambda: [domain(STRIX, iommu_dma_protection=False)]),
    ("thunderbolt-few-rings", "note", lambda: [domain(STRIX, rings=few(STRIX))]),
    ("mac-rdma-off", "warning", lambda: [machine("mac-studio-3", rdma_ctl="disabled")]),
    ("mac-too-old", "warning", lambda: [machine("mac-studio-3", os_version="15.6")]),
    ("interface-off", "error", lambda: [net(STRIX, "thunderbolt1", enabled=False)]),
    ("speed-below-card", "warning", lambda: [net(PC, "enp8s0", speed_mbps=1000)]),
    ("no-carrier", "warning", lambda: [net(E810, "enp65s0f0np0", carrier=False)]),
    ("no-address", "error", lambda: [net(STRIX, "thunderbolt1", addresses=())]),
    ("no-carrier", "warning", lambda: [net(PC, "enp8s0", kind="virtual", carrier=False)]),
    ("half-duplex", "warning", lambda: [net(PC, "enp8s0", duplex="half")]),
    ("interface-errors", "warning", lambda: [counted(PC, "enp8s0", rx_crc_errors=7)]),
    ("interface-drops", "note", lambda: [counted(PC, "enp8s0", rx_packets=1000, rx_dropped=90)]),
    ("speed-unknown", "note", lambda: [net(PC, "enp8s0", speed_mbps=None, driver="virtio_net")]),
    ("no-link", "error", lambda: [net("wifi-only", "wlan0", addresses=())]),
    ("rdma-lid-zero", "error", lambda: [port(CX3, state="ACTIVE", lid=0)]),
    ("rdma-port-down", "error", lambda: [port(E810, state="DOWN")]),
    ("rdma-no-gid", "error", lambda: [gids()]),
    ("rdma-no-roce-v2", "warning", lambda: [gids("v1")]),
    ("rdma-no-ipv4-gid", "warning", lambda: [gids("v6")]),
    ("rdma-errors", "warning", lambda: [port(E810, errors=(("out_of_sequence", 12),))]),
    (
        "rdma-software",
        "note",
        lambda: [change(read(PC), rdma=(RdmaDevice("rxe0", "/x", driver="rxe", software=True),))],
    ),
    ("rdma-driver-missing", "warning", lambda: [change(without_module(E810, "irdma"), rdma=())]),
    ("rdma-no-uverbs", "error", lambda: [without_module(E810, "ib_uverbs")]),
    ("rdma-core-missing", "warning", lambda: [change(read(E810), seen={})]),
    ("pcie-downgraded", "warning", lambda: [card(current_width=4)]),
    ("pcie-downgraded", "warning", lambda: [card(current_gt_s=8.0)]),
    ("clock-not-synchronized", "warning", lambda: [offset("a", 3.0)]),
    ("firewall-rule", "error", lambda: [change(read(STRIX), firewalls=(SHUT,))]),
    ("unreadable", "note", lambda: [change(read(PC), unreadable=(Unreadable("/sys/x", "is no number"),))]),
    ("firewall", "warning", lambda: [change(read(PC), firewalls=(Firewall("nftables", True, "drop", ()),))]),
    ("kernel-old", "note", lambda: [machine(STRIX, kernel="6.1.0-32-amd64")]),
    ("power-saving", "warning", lambda: [machine(PC, power_profile="low-power")]),
    ("power-saving", "warning", lambda: [machine(PC, governor="powersave", frequency_driver="acpi-cpufreq")]),
    ("subnets-differ", "error", lambda: [net(STRIX, "thunderbolt1", addresses=ELSEWHERE), read("strix-halo-b")]),
    ("mtu-differs", "warning", lambda: [net(STRIX, "thunderbolt0", mtu=1500), read("strix-halo-b")]),
    ("same-address", "error", lambda: [read(PC), other_host(PC, "pc2")]),
    ("no-common-subnet", "warning", lambda: [read(PC), read(E810)]),
    ("two-subnet-managers", "note", lambda: [opensm("a"), opensm("b")]),
    ("macos-skew", "warning", lambda: two_macs("25C60")),
    ("kernel-skew", "note", lambda: [read(STRIX), read(CX3)]),
    ("ferrule-skew", "warning", lambda: software("ferrule", "0.9.0", "0.10.0")),
    ("python-skew", "note", lambda: software("python", "3.12.3", "3.13.1")),
    ("torch-skew", "warning", lambda: software("torch", "2.9.0+cu128", "2.10.0+rocm6.4")),
    ("torch-skew", "warning", lambda: software("transformers", "5.1.0", "5.2.0")),
    ("ray-skew", "error", lambda: software("ray", "2.51.0", "2.51.1")),
    ("firmware-skew", "note", lambda: [firmware("a", "2.42.5000"), firmware("b", "2.36.5000")]),
    ("clock-skew", "warning", lambda: [offset("a", -0.4), offset("b", 0.45), offset("c", 2.0)]),
    *((which, severity, make) for which, severity, _, _, make in FAULTS),
]


def test_the_cure_of_a_version_is_a_command_for_the_older_hosts() -> None:
    (found,) = (one for one in diagnose(software("torch", "2.9.0+cpu", "2.10.0+rocm6.4", None)) if "skew" in one.id)
    assert found.hosts == ("a", "b")
    assert [(one.text.partition(",")[0], one.commands) for one in found.cure] == [
        ("On a", ("pip install 'torch==2.10.0'",))
    ]
    assert found.evidence == (("$ ferrule version (a)", "2.9.0+cpu"), ("$ ferrule version (b)", "2.10.0+rocm6.4"))


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("torch", "2.9.0+cu128", "2.9.0+rocm6.4"),
        ("python", "3.12.3", "3.12.9"),
        ("ferrule", "0.1.0", "0.1.0"),
        ("ray", "2.51.0", None),
    ],
)
def test_versions_that_work_together_are_no_finding(name: str, one: str, other: str | None) -> None:
    assert not [found for found in diagnose(software(name, one, other)) if found.id.endswith("-skew")]


PFC_OFF = "prio-pfc 0:off 1:off 2:off 3:off 4:off 5:off 6:off 7:off"
ON, OFF, UNKNOWN = FlowControl(True, True, ()), FlowControl(False, False, ()), FlowControl()


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (OFF, "enp65s0f0np0 does not obey or send pause frames, and PFC is off."),
        (change(OFF, priorities=None), "enp65s0f0np0 does not obey or send pause frames; whether PFC is on could not"),
        (FlowControl(True, False, None), "enp65s0f0np0 does not send pause frames; whether PFC is on could not"),
        (UNKNOWN, "whether enp65s0f0np0 pauses is not told, neither by pause frames nor by PFC."),
        (change(UNKNOWN, priorities=()), "whether enp65s0f0np0 pauses is not told."),
        (None, "whether enp65s0f0np0 pauses is not told, neither"),
        (ON, None),
        (change(ON, priorities=None), None),
        (change(OFF, priorities=(3,)), None),
        (change(UNKNOWN, priorities=(3,)), None),
    ],
)
def test_what_is_read_of_flow_control_is_told_from_what_is_not(control: FlowControl | None, said: str | None) -> None:
    found = [one for one in diagnose([net(E810, "enp65s0f0np0", flow_control=control)]) if one.id == "rdma-lossless"]
    assert len(found) == (said is not None)
    assert said is None or said in found[0].what


def test_the_evidence_of_flow_control_is_what_the_kernel_told() -> None:
    (found,) = (one for one in diagnose([read(SPARK)]) if one.id == "rdma-lossless")
    assert [line for _, line in found.evidence] == ["RX: off", "TX: off", PFC_OFF]
    device = read(SPARK).netdev("enp1s0f0np0")
    assert device is not None
    assert device.flow_control == ON


def test_kernels_matter_where_they_drive_the_cable() -> None:
    hosts = [machine(PC, name="a", kernel="6.1.0"), machine(PC, name="b", kernel="6.12.0")]
    assert not [found for found in diagnose(hosts) if found.id == "kernel-skew"]


@pytest.mark.parametrize(("which", "severity", "make"), CASES, ids=[case[0] for case in CASES])
def test_a_fault_is_found_and_has_a_cure(which: str, severity: str, make: Callable[[], list[Inventory]]) -> None:
    found = [one for one in diagnose(make()) if one.id == which]
    assert {one.severity for one in found} == {severity}
    for one in found:
        assert one.what.endswith(".")
        assert one.why
        assert one.cure
        assert one.hosts


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault[0]}-{number}" for number, fault in enumerate(FAULTS)])
def test_a_fault_of_a_gpu_is_the_only_finding_that_is_new(fault: tuple[Any, ...]) -> None:
    which, _, subject, cure, make = fault
    (inventory,) = make()
    known = {(one, what) for _, one, what in EXPECTED[inventory.machine.tree]}
    found = [one for one in diagnose([inventory]) if (one.id, one.subject) not in known]
    assert {one.id for one in found} == {which}
    first = next(one for one in found if one.subject == subject)
    assert first.evidence
    said = relevant(first.cure, inventory.machine)
    assert cure in "\n".join(line for one in said for line in (one.text, *one.commands))


def test_what_is_right_on_a_gpu_is_no_finding() -> None:
    for build in ("2.9.1+rocm7.0\nhip 7.0.51831", "2.10.0+rocm6.4\nhip 6.4.43482"):  # either brings code for gfx1151
        new = faulty(HALO, lambda tree, to=build: told(tree, TORCH, "2.10.0+rocm7.1\nhip 7.1.25424", to))()
        assert of(diagnose(new), "torch-rocm-old") == []
    ubuntu = faulty(HALO, lambda build: build.put("/proc/sys/kernel", osrelease="6.17.0-19-generic"))()[0]
    assert of(diagnose([ubuntu]), "gpu-kernel-old") != []
    patched = change(ubuntu, machine=change(ubuntu.machine, os_id="ubuntu"))
    assert of(diagnose([patched]), "gpu-kernel-old") == []
    carved = faulty(HALO, lambda build: attribute(build, HALO_GPU, "mem_info_vram_total", 96 << 30))()[0]
    carved = change(carved, machine=change(carved.machine, memory_bytes=30 << 30))
    assert of(diagnose([carved]), "gpu-gtt-small") == []
    inside = change(read(ARC), devices=(change(read(ARC).devices[0], unified=True, driver=None, architecture=None),))
    assert [one for one in diagnose([inside]) if one.id.startswith(("gpu-", "torch-"))] == []


def test_every_finding_is_tested() -> None:
    on_trees = {which for rows in EXPECTED.values() for _, which, _ in rows}
    assert on_trees | {case[0] for case in CASES} == set(FINDINGS)
    seen = [(which, severity) for rows in EXPECTED.values() for severity, which, _ in rows]
    seen += [(which, severity) for which, severity, _ in CASES]
    order = ("note", "warning", "error")
    worst = {name: max((severity for which, severity in seen if which == name), key=order.index) for name in FINDINGS}
    assert worst == FINDINGS


def of(findings: tuple[Finding, ...], which: str) -> list[str]:
    return [one.subject for one in findings if one.id == which]


def test_a_cable_that_is_well_is_not_mentioned() -> None:
    assert of(diagnose([peer(STRIX, tx_speed_gb_s=20.0)]), "cable-asymmetric") == []


def test_the_governor_powersave_is_well_with_a_driver_that_chooses_itself() -> None:
    own = machine(PC, governor="powersave", frequency_driver="amd-pstate-epp", power_profile="balanced")
    assert of(diagnose([own]), "power-saving") == []


def test_an_old_controller_does_all_it_can() -> None:
    slow = peer(STRIX, rx_speed_gb_s=10.0, tx_speed_gb_s=10.0)
    host = slow.thunderbolt[-1].host
    assert host is not None
    old = change(slow.thunderbolt[-1], host=change(host, generation=2))
    assert of(diagnose([slow]), "cable-half-speed") != []
    assert of(diagnose([change(slow, thunderbolt=(old,))]), "cable-half-speed") == []


def bridged(*, kind: NetKind = "bridge", speed: int = 2500) -> Inventory:
    """The PC's cable is in a bridge, which has the address; or there is no cable below it."""
    found = net(PC, "enp8s0", addresses=(), master="br0", speed_mbps=speed)
    home = read(PC).netdev("enp8s0")
    assert home is not None
    members = ("enp8s0",) if kind == "bridge" else ()
    bridge = change(home, name="br0", kind=kind, driver=None, pci_address=None, members=members, speed_mbps=None)
    return change(found, netdevs=(*found.netdevs, bridge))


def connectivity(inventory: Inventory) -> list[tuple[str, str]]:
    wanted = ("no-link", "only-wifi", "only-slow-ethernet", "speed-unknown")
    return [(one.id, one.subject) for one in diagnose([inventory]) if one.id in wanted]


def test_the_cable_below_a_bridge_counts() -> None:
    assert connectivity(bridged()) == [("only-slow-ethernet", "br0")]
    assert connectivity(bridged(speed=10_000)) == []


def test_what_exists_only_in_the_kernel_is_a_way_of_unknown_speed() -> None:
    assert connectivity(bridged(kind="virtual")) == [("speed-unknown", "br0")]


def test_zeros_of_a_damaged_record_divide_nothing() -> None:
    assert of(diagnose([net(STRIX, "thunderbolt1", mtu=0)]), "mtu-small") == ["thunderbolt1"]
    assert of(diagnose([net(PC, "enp8s0", speed_mbps=0)]), "speed-below-card") == ["enp8s0"]
    assert of(diagnose([port(CX3, rate_gb_s=0.0)]), "rdma-no-subnet-manager") == ["ibp1s0:1"]
    diagnose([card(current_gt_s=0.0, current_width=0), net(E810, "enp65s0f0np0", speed_mbps=0, mtu=0)])


def test_three_lanes_one_way_are_meant_to_be() -> None:
    found = diagnose([peer(STRIX, rx_lanes=3, tx_lanes=1, rx_speed_gb_s=40.0, tx_speed_gb_s=40.0)])
    assert not {one.id for one in found} & {"cable-asymmetric", "cable-one-lane", "cable-half-speed"}


def test_an_interface_with_the_way_to_the_internet_keeps_its_mtu() -> None:
    fast = net(PC, "enp8s0", speed_mbps=10_000)
    assert of(diagnose([fast]), "mtu-small") == []
    assert of(diagnose([change(fast, routes=())]), "mtu-small") == ["enp8s0"]


def test_memlock_is_well_when_the_user_may_raise_it() -> None:
    assert of(diagnose([machine(E810, memlock_hard_bytes=(1 << 63) - 1)]), "memlock-small") == []
    assert of(diagnose([machine(PC, memlock_bytes=65536)]), "memlock-small") == []


def test_dmas_guard_of_the_sockets_is_no_finding_with_passthrough() -> None:
    assert of(diagnose([read(STRIX)]), "iommu-translated") == []
    assert of(diagnose([machine(STRIX, boot_command_line=())]), "iommu-translated") == ["IOMMU"]


def test_who_keeps_settings_tells_the_commands() -> None:
    kept = diagnose([net(STRIX, "thunderbolt1", addresses=())])
    (finding,) = [one for one in kept if one.id == "no-address"]
    assert finding.cure[0].commands[0].startswith("sudo nmcli connection add")
    for manager, words in ((None, "until the next start."), (NetManager("netplan"), "does it to last, with netplan.)")):
        left = diagnose([net(STRIX, "thunderbolt1", addresses=(), manager=manager)])
        (finding,) = [one for one in left if one.id == "no-address"]
        assert finding.cure[0].text.endswith(words)
    assert finding.cure[0].commands[0].startswith("sudo ip address add")


def test_a_dock_between_is_told_by_its_route_only() -> None:
    assert of(diagnose([peer(STRIX, route=0xFF)]), "cable-behind-dock") == []
