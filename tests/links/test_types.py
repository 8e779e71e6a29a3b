"""Values that the types derive from what was read."""

from __future__ import annotations

import pytest

from ferrule.links import Finding, Inventory, Machine, PcieLink, ThunderboltPeer, worst
from ferrule.links.types.machine import Iommu, Module
from ferrule.links.types.net import NetAddress, Route
from ferrule.links.types.pcie import pcie_gb_s


def test_a_cable_carries_what_its_lanes_do_in_each_direction() -> None:
    peer = ThunderboltPeer("0-1", "/p", 1, rx_speed_gb_s=20, tx_speed_gb_s=20, rx_lanes=2, tx_lanes=1)
    assert (peer.rx_gb_s, peer.tx_gb_s) == (40, 20)
    assert ThunderboltPeer("0-1", "/p", 1, rx_speed_gb_s=20).rx_gb_s is None
    assert ThunderboltPeer("bus", "/p", 1, link_gb_s=80).tx_gb_s == 80


@pytest.mark.parametrize(
    ("gt_s", "width", "gb_s"),
    [(5.0, 8, 32.0), (8.0, 4, 31.508), (32.0, 4, 126.031), (None, 4, None), (8.0, None, None)],
)
def test_a_pcie_link_loses_its_line_code(gt_s: float | None, width: int | None, gb_s: float | None) -> None:
    assert pcie_gb_s(gt_s, width) == (None if gb_s is None else pytest.approx(gb_s, abs=1e-3))


def test_the_slot_is_the_nearest_bridge() -> None:
    root = PcieLink("0000:00:01.1", "/r")
    card = PcieLink("0000:01:00.0", "/c", upstream=(root,))
    assert card.slot is root
    assert root.slot is None


def test_an_iommu_is_off_without_groups_and_translates_as_soon_as_one_group_does() -> None:
    assert Iommu(0).mode == "off"
    assert Iommu(2, (("identity", 2),)).mode == "passthrough"
    assert Iommu(3, (("identity", 2), ("DMA-FQ", 1))).mode == "translated"
    assert Iommu(2).mode == "translated"


def test_ip_versions() -> None:
    assert (NetAddress("10.0.0.1", 24).version, NetAddress("fe80::1", 64).version) == (4, 6)
    assert Route("default", gateway="fe80::1").version == 6
    assert Route("10.0.0.0/24").version == 4
    assert Route("default", netdev="tun0").version is None


def test_modules_are_found_by_either_spelling() -> None:
    machine = Machine("live", modules=(Module("thunderbolt_net"), Module("own", "OE")))
    assert machine.module("thunderbolt-net") == Module("thunderbolt_net")
    assert machine.module("mlx4_core") is None


def test_evidence_is_the_first_line_of_what_was_read() -> None:
    inventory = Inventory(Machine("live"), seen={"/a": "20.0 Gb/s\n", "/b": "", "$ ip": "one\ntwo"})
    assert inventory.evidence("/a", "/no", "/b", "$ ip") == (("/a", "20.0 Gb/s"), ("/b", ""), ("$ ip", "one"))


def test_the_worst_of_findings() -> None:
    assert worst(()) == "ok"
    assert worst(tuple(Finding("x", one, "s", "w") for one in ("note", "error", "ok"))) == "error"  # type: ignore[arg-type]
