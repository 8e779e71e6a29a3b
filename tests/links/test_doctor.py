"""The doctor's findings on each recorded machine, and on two machines side by side."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
from build_trees import TREES, records
from findings_manual import listed
from hypothesis import HealthCheck, given, settings
from test_damaged_trees import damaged
from tree_builder import probe_of

import ferrule.links.doctor
from ferrule.links import Inventory, Probe
from ferrule.links.doctor import diagnose, diagnosis_json, relevant

FINDINGS = listed()
UNREAD = ("note", "firewall", "nftables")
STRIX = [
    ("warning", "cable-asymmetric", "domain1 usb4_port2 → {peer}"),
    ("warning", "mtu-small", "thunderbolt1"),
]
FIREWALLD = ("note", "firewall", "firewalld")
EXPECTED: dict[str, list[tuple[str, str, str]]] = {
    "connectx3-m2": [
        ("error", "rdma-no-subnet-manager", "ibp1s0:1"),
        ("note", "rdma-port-free", "ibp1s0:2"),
        ("note", "pcie-slot-limit", "0000:01:00.0"),
        ("note", "iommu-translated", "IOMMU"),
    ],
    "dgx-spark": [
        ("warning", "same-subnet", "enP7s7, wlP9s9"),
        ("warning", "wifi-default-route", "wlP9s9"),
        ("warning", "memlock-small", "memlock"),
        ("note", "speed-below-card", "enP7s7"),
        ("note", "rdma-port-free", "roceP2p1s0f1:1"),
        ("note", "rdma-port-free", "rocep1s0f1:1"),
        ("note", "rdma-lossless", "enP2p1s0f0np0"),
        ("note", "pcie-below-port", "0000:01:00.0"),
        ("note", "pcie-below-port", "0002:01:00.0"),
        ("note", "iommu-translated", "IOMMU"),
        UNREAD,
    ],
    "e810-roce": [
        ("warning", "memlock-small", "memlock"),
        ("note", "rdma-lossless", "enp65s0f0np0"),
        ("note", "firewall", "ufw"),
    ],
    "gpu-arc-b580": [UNREAD],
    "gpu-dgx-spark": [UNREAD],
    "gpu-strix-halo": [UNREAD],
    "gpu-two-3090": [
        ("note", "pcie-slot-limit", "0000:01:00.0"),
        ("note", "pcie-slot-limit", "0000:02:00.0"),
        ("note", "gpu-persistence-off", "NVIDIA GeForce RTX 3090 (0000:01:00.0)"),
        ("note", "gpu-persistence-off", "NVIDIA GeForce RTX 3090 (0000:02:00.0)"),
        UNREAD,
    ],
    "mac-mini-tb4": [
        ("warning", "same-subnet", "en0, en1"),
        ("note", "mac-no-rdma", "Mac mini (Mac16,10)"),
        ("note", "mtu-small", "en2"),
    ],
    "mac-studio-1": [
        ("error", "mac-forbidden-port", "Thunderbolt 1 → Mac15,14"),
        ("note", "mtu-small", "en2"),
    ],
    "mac-studio-2": [("warning", "cable-in-bridge", "bridge0")],
    "mac-studio-3": [],
    "mac-studio-4": [
        ("error", "rdma-port-down", "Thunderbolt 2 → Mac15,14"),
        ("note", "mtu-small", "en3"),
    ],
    "pc-2.5gbe": [("note", "only-slow-ethernet", "enp8s0")],
    "strix-halo-a": [*((s, i, w.format(peer="strix-b")) for s, i, w in STRIX), FIREWALLD],
    "strix-halo-b": [
        *((s, i, w.format(peer="strix-a")) for s, i, w in STRIX),
        ("warning", "same-subnet", "enp191s0, wlp192s0"),
        ("note", "secure-boot", "Secure Boot"),
        FIREWALLD,
    ],
    "wifi-only": [("warning", "only-wifi", "wlan0"), ("warning", "clock-not-synchronized", "clock")],
}
CURES = {
    "connectx3-m2": ("rdma-no-subnet-manager", "sudo systemctl enable --now opensm"),
    "dgx-spark": ("wifi-default-route", "nmcli radio wifi off"),
    "e810-roce": ("firewall", "sudo ufw allow from 10.10.0.0/24"),
    "mac-mini-tb4": ("same-subnet", "networksetup -setairportpower en1 off"),
    "mac-studio-1": ("mac-forbidden-port", "Thunderbolt 4, Thunderbolt 5, Thunderbolt 6"),
    "mac-studio-2": ("cable-in-bridge", "sudo ifconfig bridge0 deletem en3"),
    "mac-studio-4": ("rdma-port-down", "BOTH ends"),
    "pc-2.5gbe": ("only-slow-ethernet", "USB4"),
    "strix-halo-a": ("mtu-small", "sudo ip link set thunderbolt1 mtu 65520"),
    "strix-halo-b": ("cable-asymmetric", "BOTH ends"),
    "wifi-only": ("clock-not-synchronized", "setup-ntp chrony"),
}


@cache
def read(name: str) -> Inventory:
    return Probe.recorded(TREES / f"{name}.json").inventory()


def test_the_table_has_every_record() -> None:
    assert set(EXPECTED) == set(records())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_recorded_machine_has_exactly_these_findings(name: str) -> None:
    findings = diagnose([read(name)])
    assert [(one.severity, one.id, one.subject) for one in findings] == EXPECTED[name]
    for one in findings:
        assert one.id in FINDINGS
        assert one.hosts == (read(name).machine.name,)
        assert one.what.endswith(".")
        assert one.evidence
        assert one.why
        assert all(cure.text or cure.commands for cure in one.cure)
        assert relevant(one.cure, read(name).machine)


@pytest.mark.parametrize("name", sorted(CURES))
def test_a_cure_fits_the_machine(name: str) -> None:
    which, words = CURES[name]
    machine = read(name).machine
    cures = next(relevant(one.cure, machine) for one in diagnose([read(name)]) if one.id == which)
    assert words in "\n".join(line for cure in cures for line in (cure.text, *cure.commands))
    assert {cure.system for cure in cures} <= {"any", "macos", "debian", "alpine"}


def test_evidence_is_what_was_read() -> None:
    (cable, mtu, *_) = diagnose([read("strix-halo-a")])
    assert cable.evidence[-1] == ("/sys/bus/thunderbolt/devices/1-2/tx_speed", "10.0 Gb/s")
    assert mtu.evidence == (("/sys/class/net/thunderbolt1/mtu", "1500"),)
    assert "8.59 s instead of 4.29 s" in cable.why


def test_one_cable_seen_from_both_ends_is_one_finding() -> None:
    findings = diagnose([read("strix-halo-a"), read("strix-halo-b")])
    (cable,) = [one for one in findings if one.id == "cable-asymmetric"]
    assert cable.subject == "strix-a domain1 usb4_port2 ↔ strix-b domain1 usb4_port2"
    assert cable.hosts == ("strix-a", "strix-b")
    assert ("strix-b /sys/bus/thunderbolt/devices/1-2/rx_speed", "10.0 Gb/s") in cable.evidence
    assert [one.hosts for one in findings if one.id == "mtu-small"] == [("strix-a",), ("strix-b",)]


def test_of_four_macs_only_the_one_with_the_wrong_socket_is_blamed() -> None:
    findings = diagnose([read(f"mac-studio-{number}") for number in (1, 2, 3, 4)])
    errors = [(one.id, one.hosts) for one in findings if one.severity == "error"]
    assert errors == [("mac-forbidden-port", ("studio-1.local",))]


def test_json_has_everything() -> None:
    inventories = [read("connectx3-m2"), read("mac-studio-1")]
    found = json.loads(msgspec.json.encode(diagnosis_json(inventories, diagnose(inventories))))
    assert (found["schema"], found["worst"]) == (1, "error")
    assert [(one["name"], one["family"], one["source"]) for one in found["hosts"]] == [
        ("m2-host", "debian", "connectx3-m2.json"),
        ("studio-1.local", "macos", "mac-studio-1.json"),
    ]
    first = next(one for one in found["findings"] if one["id"] == "rdma-no-subnet-manager")
    assert set(first) == {"id", "severity", "subject", "what", "evidence", "why", "cure", "hosts"}
    assert first["evidence"][0] == {"where": "/sys/class/infiniband/ibp1s0/ports/1/state", "line": "2: INIT"}
    assert {one["system"] for one in first["cure"]} == {"debian", "fedora", "arch"}


@given(damaged())
@settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_records_are_diagnosed_without_fail(record: dict[str, object]) -> None:
    inventories = [probe_of("damaged", record).inventory(), read("strix-halo-b")]
    findings = diagnose(inventories)
    json.dumps(msgspec.to_builtins(diagnosis_json(inventories, findings)))
    assert {one.id for one in findings} <= set(FINDINGS)
    told = {line for finding in findings if finding.id == "unreadable" for line in finding.evidence}
    assert told == {(each.path, each.why) for inventory in inventories for each in inventory.unreadable}


def test_the_manual_lists_no_finding_that_no_check_makes() -> None:
    folder = Path(ferrule.links.doctor.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    used = set(re.findall(r'"((?:[a-z0-9]+-)+[a-z0-9]+|firewall|unreadable)"', source))
    assert set(FINDINGS) <= used
