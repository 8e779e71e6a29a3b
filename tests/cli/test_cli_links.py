"""``ferrule links``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ferrule.cli.links.measured import matrix
from ferrule.cli.main import app
from ferrule.links import Bandwidth, Latency, LinkEnd, MeasuredLink, MeasuredPair, Probe

TREES = Path(__file__).parents[1] / "links" / "trees"
PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "140"}


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["links", *words], env=PLAIN)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def tree(name: str) -> str:
    return str(TREES / f"{name}.json")


def lines(told: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip() for line in told.splitlines()]


def test_show_prints_machine_cables_interfaces_and_pcie() -> None:
    code, told = run("show", "--tree", tree("strix-halo-a"))
    assert code == 0
    for line in (
        "strix-a Framework Desktop (AMD Ryzen AI Max 300 Series)",
        "IOMMU: translated, Secure Boot: off, memlock: 8 MiB, clock: synchronized",
        "firewall: firewalld",
        "domain1 usb4_port2 strix-b (Linux) 2×20 2×10 thunderbolt1 network",
        "thunderbolt0 thunderbolt up 65520 10.77.0.1/24 0",
        "0000:c7:00.6 AMD Strix Halo USB4 Router 4.0 ×16 4.0 ×16 4.0 ×16 252",
    ):
        assert line in lines(told)


def test_show_prints_rdma_and_a_link_below_what_the_card_can() -> None:
    told = lines(run("show", "--tree", tree("connectx3-m2"))[1])
    assert "ibp1s0:1 INIT 40 InfiniBand ibp1s0 0: fe80::25e:3:0:1" in told
    assert "0000:01:00.0 Mellanox ConnectX-3 3.0 ×4 3.0 ×8 4.0 ×4 32" in told


def test_show_says_which_firewall_is_on_and_which_is_unknown() -> None:
    assert "firewall: nftables (unknown)" in lines(run("show", "--tree", tree("dgx-spark"))[1])
    assert "firewall: ufw" in lines(run("show", "--tree", tree("e810-roce"))[1])


def test_show_knows_macs() -> None:
    told = lines(run("show", "--tree", tree("mac-studio-1"))[1])
    assert "Thunderbolt 1 Mac15,14 (Apple Inc.) 80 80 en2 network, rdma" in told
    assert "Thunderbolt 6 nothing en7" in told
    assert "rdma_en2:1 DOWN Thunderbolt en2" in told


@pytest.mark.parametrize("path", sorted(TREES.glob("*.json")), ids=lambda path: path.stem)
def test_no_name_is_cut_off_on_a_narrow_terminal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLAIN, "COLUMNS", "80")
    told = run("show", "--tree", str(path))[1]
    inventory = Probe.recorded(path).inventory()
    names = [one.name for one in inventory.netdevs if one.kind != "loopback"]
    names += [one.address for one in inventory.pcie] + [f"{one.name}:1" for one in inventory.rdma]
    for name in names:
        assert re.search(rf"^{re.escape(name)}\s", told, re.MULTILINE), name
    assert max(map(len, told.splitlines())) <= 80


def test_show_as_json() -> None:
    code, told = run("show", "--tree", tree("mac-mini-tb4"), "--json")
    found = json.loads(told)
    assert code == 0
    assert found["machine"]["system"] == "macos"
    assert found["thunderbolt"][0]["peers"][0]["link_gb_s"] == 40.0
    assert "seen" not in found


def test_record_and_show_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    code, told = run("record", str(path))
    assert code == 0
    assert lines(told)[0].startswith(f"wrote {path}: ")
    assert f"see what is in it: ferrule links show --tree {path}" in told
    assert run("show", "--tree", str(path))[0] == 0
    code, told = run("record", str(path))
    assert (code, told) == (8, f"error: {path} is there already; choose another name\n")


@pytest.mark.parametrize("command", ["show", "record"])
def test_help_has_examples(command: str) -> None:
    code, told = run(command, "--help")
    assert code == 0
    assert told.count(f"ferrule links {command}") >= 2


def test_probe_needs_a_host() -> None:
    code, told = run("probe")
    assert code == 2
    assert "--lab" in told


def test_watch_is_for_this_machine_and_people() -> None:
    assert run("show", "--watch", "--json")[0] == 2


def test_the_matrix_has_both_directions_and_faults() -> None:
    ends = LinkEnd("a", "eth0"), LinkEnd("b", "eth0")
    latency, rates = Latency(64, 1e-5, 1.2e-5, 2e-5), Bandwidth(1, 9e9, 4e9, 9e9, 4e9)
    good = MeasuredLink(ends, 1e9, latency=(latency,), bandwidth=(rates,))
    pairs = [
        MeasuredPair(("a", "b"), 1e9, (good,)),
        MeasuredPair(("a", "c"), 1e9 - 7200, (MeasuredLink((ends[0], LinkEnd("c", "eth0")), 1e9, fault="stall"),)),
    ]
    console = Console(width=140)
    with console.capture() as shown:
        console.print(matrix(pairs, now=1e9 + 5))
    told = lines(shown.get())
    assert "a stall, 2 h ago 12 µs, 9 Gb/s, 5 s ago" in told
    assert "b 12 µs, 4 Gb/s, 5 s ago" in told
