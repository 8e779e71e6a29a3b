"""Clusters from published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.errors import ConfigError
from ferrule.hardware import shipped
from ferrule.plan.cluster import cluster_from_profile, parse_cluster
from ferrule.plan.cluster.file import format_cluster
from ferrule.plan.cluster.spec import ACHIEVED


@pytest.mark.parametrize("name", sorted(shipped().labs))
def test_every_lab_is_a_cluster_that_can_be_saved(name: str) -> None:
    lab, cluster = shipped().labs[name], cluster_from_profile(name)
    assert tuple(device.name for device in cluster.devices) == lab.hosts
    assert [device.kind for device in cluster.devices] == [machine.name for machine in lab.machines]
    assert cluster.cores is None
    for device, machine in zip(cluster.devices, lab.machines, strict=True):
        assert 0.7 * machine.memory.value < device.memory < machine.memory.value
        assert device.memory_bandwidth == pytest.approx(machine.memory_bandwidth.value * ACHIEVED)
    assert parse_cluster(format_cluster(cluster)) == cluster


def test_two_cables_are_two_rails_which_lose_what_the_cable_loses_both_ways() -> None:
    (pair,) = cluster_from_profile("two-strix").pairs
    assert [rail.name for rail in pair.rails] == ["usb4-40g-1", "usb4-40g-2"]
    rail = pair.rails[0]
    assert rail.transport == "tcp"
    assert rail.alpha == pytest.approx(62e-6, rel=1e-2)  # and headers
    assert rail.bandwidth == pytest.approx(10e9 / 8 * 0.6 * 1448 / 1514)


def test_verbs_lose_no_headers_and_hardly_wait_for_hosts() -> None:
    cluster = cluster_from_profile("mac-four")
    assert len(cluster.pairs) == 6
    (rail,) = cluster.pairs[0].rails
    assert (rail.transport, rail.bandwidth) == ("verbs", 75e9 / 8)
    assert rail.alpha == pytest.approx(5e-6)


def test_strix_halo_lends_124_gib_and_macos_three_quarters() -> None:
    assert cluster_from_profile("two-strix").devices[0].memory == 124 << 30
    assert cluster_from_profile("mac-four").devices[0].memory == 384 << 30


def test_a_switch_joins_any_two() -> None:
    cluster = cluster_from_profile("three-pc-switch")
    assert {pair.name for pair in cluster.pairs} == {"pc-1-pc-2", "pc-1-pc-3", "pc-2-pc-3"}
    assert any("switch" in note for note in cluster.notes)


def test_tcp_waits_longer_for_macos() -> None:
    text = """
    [[device]]
    name = "a"
    machine = "%s"
    [[device]]
    name = "b"
    machine = "%s"
    [[link]]
    between = ["a", "b"]
    cable = "tb5-80g-tcp"
    """
    macs = parse_cluster(text % ("mac-mini-m4-pro", "mac-mini-m4-pro"))
    others = parse_cluster(text % ("pc", "strix-halo"))
    assert macs.pairs[0].alpha == pytest.approx(300e-6, rel=1e-3)
    assert others.pairs[0].alpha == pytest.approx(112e-6, rel=1e-3)


def test_a_file_of_ones_own_and_none(tmp_path: Path) -> None:
    path = tmp_path / "desk.toml"
    path.write_text('[lab.desk]\ntitle = "Mine"\nhosts = [{ name = "box", machine = "pc" }]\n')
    (device,) = cluster_from_profile(str(path)).devices
    assert device.name == "box-1"
    with pytest.raises(ConfigError, match="there is no lab 'two-box'; choose one of"):
        cluster_from_profile("two-box")
