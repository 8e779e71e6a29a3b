"""Machines that were looked at but not measured: what `ferrule plan --tree` gives for each recorded tree with GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.engine.device_names import device_of
from ferrule.errors import PlanError
from ferrule.links import Inventory, Probe
from ferrule.plan.cluster import cluster_of_inventories
from ferrule.plan.cluster.file import format_cluster, parse_cluster
from ferrule.plan.saved import read_plan

TREES = Path(__file__).parents[2] / "links" / "trees"
HALO, SPARK, PAIR, ARC = "gpu-strix-halo", "gpu-dgx-spark", "gpu-two-3090", "gpu-arc-b580"
PLANS = {
    HALO: ([("halo", "cuda:0", "strix-halo", 120.0, 217.6, 59.4)], "single", "cuda:0"),
    SPARK: ([("spark", "cuda:0", "dgx-spark", 117.9, 232.1, 62.5)], "single", "cuda:0"),
    PAIR: (
        [("pair-0", "cuda:0", "pc-3090", 23.0, 795.6, 71.2), ("pair-1", "cuda:1", "pc-3090", 23.0, 795.6, 71.2)],
        "tensor",
        "cuda:0,cuda:1",
    ),
    ARC: ([("arc", "xpu:0", "pc-b580", 11.0, 387.6, 109.4)], "single", "xpu:0"),
}
"""Of each device: name, ``--device``, profile, GiB that a model may fill, GB/s of reading, TFLOP/s in bfloat16; then
the best plan for a model of 8B in int8, and which ``--device`` it means."""


def read(name: str) -> Inventory:
    return Probe.recorded(TREES / f"{name}.json").inventory()


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_recorded_machine_is_planned_for(name: str, tmp_path: Path) -> None:
    devices, strategy, flag = PLANS[name]
    tree = str(TREES / f"{name}.json")
    told = CliRunner().invoke(app, ["plan", "llama-3.1-8b", "--weights", "int8", "--tree", tree, "--json"])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    found = [
        (
            one["name"],
            one["device"],
            one["kind"],
            round(one["memory"] / 2**30, 1),
            round(one["memory_bandwidth"] / 1e9, 1),
            round(one["flops"]["bf16"] / 1e12, 1),
        )
        for one in answer["cluster"]["devices"]
    ]
    assert found == devices
    best = answer["plans"][answer["best"]]
    assert (best["strategy"], best["fits"], best["obstacle"]) == (strategy, True, None)
    assert any("never measured on GPUs" in each for each in answer["cautions"])
    (tmp_path / "plan.json").write_text(told.stdout)
    saved = read_plan(tmp_path / "plan.json")
    host = devices[0][0].removesuffix("-0")
    assert (saved.device, set(saved.hosts)) == (flag, {host})
    assert [device_of(flag, rank, len(saved.hosts)) for rank in range(len(saved.hosts))] == flag.split(",")
    saved.require_hosts([host], "here")


def test_memory_of_unified_devices_is_the_hosts_once() -> None:
    halo = read(HALO)
    (device,) = halo.devices
    lent, host = device.memory_bytes, halo.machine.memory_bytes
    assert lent is not None
    assert host is not None
    # A limit beyond what the system can spare does not help; a carve-out is not in the host's memory any more.
    more = replace(halo, devices=(replace(device, memory_bytes=host, gtt_bytes=host),))
    assert cluster_of_inventories([more]).devices[0].memory == host - host // 32
    carved = replace(device, memory_bytes=96 << 30, carved_bytes=96 << 30, gtt_bytes=15 << 30)
    small = replace(halo, devices=(carved,), machine=replace(halo.machine, memory_bytes=30 << 30))
    assert cluster_of_inventories([small]).devices[0].memory == 93 << 30


def test_two_cards_exchange_through_the_host() -> None:
    cluster = cluster_of_inventories([read(PAIR)])
    (pair,) = cluster.pairs
    # Eight lanes of PCIe 4.0 are 15.75 GB/s, of which copies get 0.8; both cards', and 8 GB/s from rank to rank.
    copied = 16e9 * 8 * 128 / 130 / 8 * 0.8
    assert pair.bandwidth == pytest.approx(1 / (2 / copied + 1 / 8e9))
    assert (pair.alpha, pair.rails[0].transport) == (pytest.approx(21e-6), "shm")
    assert {device.host_name for device in cluster.devices} == {"pair"}
    assert all(device.price is None and device.watts_busy is None for device in cluster.devices)
    assert parse_cluster(format_cluster(cluster)) == cluster


def test_several_machines_and_what_is_not_known() -> None:
    both = cluster_of_inventories([read(HALO), read(SPARK)])
    assert ([one.name for one in both.devices], both.pairs) == (["halo", "spark"], ())
    assert "cables between these machines are not known" in both.notes[-1]
    strange = replace(read(PAIR).devices[0], device_id=0x1234, name="Something")
    pair = replace(read(PAIR), devices=(strange, read(PAIR).devices[1]))
    cluster = cluster_of_inventories([pair])
    assert [(one.name, one.device) for one in cluster.devices] == [("pair", "cuda:1")]
    assert "Something is left out" in cluster.notes[0]
    with pytest.raises(PlanError, match="arc: no GPU of which figures are known; describe it in a file"):
        cluster_of_inventories([replace(read(ARC), devices=())])
