"""Profiles of machines, cables and labs: what ships is whole, and what is wrong in a file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.errors import ConfigError
from ferrule.hardware import Figure, Machine, Profiles, find_lab, shipped


def test_what_ships_is_whole_and_every_figure_has_a_source() -> None:
    profiles = shipped()
    assert {"strix-halo", "dgx-spark", "mac-studio-m3-ultra", "pc-3090"} <= set(profiles.machines)
    wanted = "usb4-40g tb5-80g ethernet-2.5g ethernet-10g ethernet-100g e810-100g connectx-3 connectx-7 wifi-6"
    assert set(wanted.split()) <= set(profiles.cables)
    for machine in profiles.machines.values():
        assert {"memory", "memory_bandwidth"} <= set(_figures(machine))
        assert min(figure.value for figure in machine.flops.values()) > 1e12
        assert machine.half_precision.value >= max(machine.flops["fp32"].value, 1e12)
    for cable in profiles.cables.values():
        assert cable.shaping.rate is not None
        assert cable.shaping.rate >= 5e8
        assert 0 < cable.shaping.delay < 0.01
    for lab in profiles.labs.values():
        assert lab.topology.hosts == len(lab.hosts) == len(lab.machines)
        assert all(lab.topology.next_hop(0, host) is not None for host in range(1, len(lab.hosts)))


def _figures(known: Machine) -> dict[str, Figure]:
    plain = {name: value for name, value in vars(known).items() if isinstance(value, Figure)}
    return plain | {f"flops.{dtype}": figure for dtype, figure in known.flops.items()}


def test_each_figure_can_be_read_somewhere_or_says_that_it_is_a_choice() -> None:
    profiles = shipped()
    figures = {
        f"{known.name}.{name}": figure
        for known in profiles.machines.values()
        for name, figure in _figures(known).items()
    } | {f"{known.name}.{name}": figure for known in profiles.cables.values() for name, figure in known.figures.items()}
    assert len(figures) > 100
    for name, figure in figures.items():
        assert len(figure.source) > 5, name
        own = figure.source.startswith(("a choice", "as ", "arithmetic: ", "IEEE 802.", "InfiniBand Architecture"))
        assert own or figure.url.startswith("https://"), f"{name} has no url: {figure.source}"


def test_a_gpu_is_known_by_its_numbers() -> None:
    profiles = shipped()
    known = [one for machine in profiles.machines.values() for one in machine.gpu]
    assert len(known) == len(set(known))
    machine = profiles.by_gpu(0x10DE, 0x2204)
    assert machine is not None
    assert machine.name == "pc-3090"
    assert profiles.by_gpu(0x10DE, None) is None


MACS = ["mac-studio-m3-ultra", "mac-studio-m3-ultra-60", "mac-studio-m2-ultra", "mac-studio-m4-max", "mac-mini-m4-pro"]


def test_machines_that_people_plan_with_have_speed_power_and_price() -> None:
    machines = shipped().machines
    for name in ["strix-halo", "dgx-spark", *MACS]:
        machine = machines[name]
        assert {"fp32", "fp16", "bf16"} <= set(machine.flops), name
        assert machine.watts_busy is not None
        assert machine.watts_idle is not None
        assert 1 < machine.watts_idle.value < machine.watts_busy.value < 600
        assert machine.price is not None
        assert 1000 < machine.price.value < 10_000
    for name in ("pc-3090", "pc-4090", "a100-80g"):
        assert {"fp32", "fp16", "bf16", "int8"} <= set(machines[name].flops), name


def test_ready_labs_have_the_hosts_and_cables_that_they_name() -> None:
    strix = find_lab("two-strix")
    assert strix.hosts == ("strix-1", "strix-2")
    assert strix.topology.between(0, 1) == (0, 1)
    assert strix.topology.cables[0].rate == 10e9
    assert strix.topology.cables[0].delay == pytest.approx(50e-6)
    assert len(find_lab("mac-four").topology.cables) == 6
    assert find_lab("three-pc-switch").topology.cables[0].hosts == (0, 1, 2)
    assert find_lab("spark-pair").topology.cables[0].mtu == 9000


CABLE = """
[cable.mine]
title = "mine"
rate = { value = "1 Gb/s", source = "measured" }
"""
MACHINE = """
[machine.box]
title = "box"
memory = { value = "8 GiB", source = "measured" }
memory_bandwidth = { value = "20 GB/s", source = "measured" }
price = { value = 500, source = "paid", url = "https://shop.example/box" }
[machine.box.flops]
fp32 = { value = 1e12, source = "measured" }
"""
LAB = """
[lab.desk]
title = "desk"
hosts = [{ name = "box", machine = "pc", count = 2 }]
cables = [{ cable = "mine", between = ["box-1", "box-2"] }]
"""


def test_a_file_of_ones_own_builds_on_what_ships(tmp_path: Path) -> None:
    path = tmp_path / "desk.toml"
    path.write_text(CABLE + MACHINE + LAB.replace('"pc"', '"box"'))
    lab = find_lab(str(path))
    assert (lab.name, lab.hosts, lab.machines[0].name) == ("desk", ("box-1", "box-2"), "box")
    assert lab.machines[0].price == Figure(500, "paid", "https://shop.example/box")
    assert lab.machines[0].watts_busy is None
    assert lab.machines[0].half_precision.value == 1e12
    assert lab.topology.cables[0].rate == 1e9


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[cable.mine]", "[cable.mine", "desk.toml is not TOML"),
        ("[cable.mine]", "[wire.mine]", "desk.toml: there is no table 'wire'; there are machine, cable, lab"),
        ("1 Gb/s", "quick", r"\[cable.mine\], rate: 'quick' is not a rate; write for example"),
        (', source = "measured"', "", "needs a value and its source"),
        ("rate =", "speed =", "there is no entry 'speed'; there are title, mtu, rate, delay"),
        ("[machine.box.flops]\nfp32", "flops", r"\[machine.box\]: flops is a table of fp32, fp16, bf16, fp8, int8"),
        ("fp32", "fp12", "flops: there is no type 'fp12'; there are fp32, fp16, bf16, fp8, int8"),
        ("value = 500", "value = -500", "price: a number from 0 on is needed, not -500"),
        ("value = 1e12", "value = nan", "flops, fp32: a number from 0 on is needed, not nan"),
        ("value = 500", 'value = "cheap"', "price: could not convert"),
        ('url = "https://shop.example/box"', "url = 7", "price needs a value and its source"),
        (
            "[machine.box.flops]",
            'gpu = ["10DE:2204"]\n[machine.box.flops]',
            "gpu lists PCI vendors and devices in small",
        ),
        ('"pc"', '"cray"', r"\[lab.desk\]: there is no machine 'cray'; known are strix-halo"),
        ('cable = "mine"', 'cable = "yours"', "there is no cable 'yours'"),
        ('"box-2"]', '"box-3"]', "there is no host 'box-3', only box-1, box-2"),
        ('"box-2"]', '"box-1"]', "two different hosts"),
        ("between =", "among =", "there is no entry 'among'"),
        ("count = 2", "count = 0", "count is a number from 1 to 64, not 0"),
        ('title = "desk"', "", "title is missing"),
        ("[lab.desk]", "[lab]", r"write \[lab.NAME\]"),
        ('rate = { value = "1 Gb/s"', 'mtu = { value = "12"', "mtu must be from 68 to 65535"),
        ('rate = { value = "1 Gb/s"', 'loss = { value = "200%"', "loss: '200%' is not a fraction"),
        ('rate = { value = "1 Gb/s"', 'collapse = { value = "1.5"', "give it a rate"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(old: str, new: str, said: str) -> None:
    profiles = shipped()
    text = CABLE + MACHINE + LAB
    assert old in text
    with pytest.raises(ConfigError, match=said):
        profiles.add(text.replace(old, new), "desk.toml")


def test_unknown_labs_are_answered_with_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of two-strix"):
        find_lab("three-strix")
    with pytest.raises(ConfigError, match="cannot read"):
        find_lab(str(tmp_path / "none.toml"))
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ConfigError, match="must define one lab"):
        find_lab(str(tmp_path / "empty.toml"))
    assert Profiles().add("", "empty") == []
