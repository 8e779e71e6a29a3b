"""Live machines as a cluster: links as probed, else as calibrated, else guessed and said so; other hosts over ssh."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ferrule.errors import ConfigError, LinkError
from ferrule.fabric.join.addresses import Interface
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.known_links import KnownLinks
from ferrule.links import Bandwidth, Latency, LinkEnd, MeasuredLink, MeasuredLinks, MeasuredPair
from ferrule.plan.cluster import live as cluster_live
from ferrule.plan.cluster.live import (
    HostReport,
    cluster_of_reports,
    devices_here,
    live_cluster,
    parse_report,
    report_text,
)
from ferrule.plan.cluster.rails import Sources, rails_of_pair
from ferrule.plan.cluster.spec import DeviceSpec
from ferrule.plan.device.benchmark import Copies, Figures

NOW = 2e9


def _report(number: int, *speeds: int, name: str = "") -> HostReport:
    faces = tuple(
        Interface(f"eth{face}", f"10.0.{face}.{number}", 24, 1500, speed, identity=f"card{face}")
        for face, speed in enumerate(speeds)
    )
    name = name or f"box-{number}"
    host = RankHost(name, f"memory {number}", 1, (0,), "auto", interfaces=faces, identity=f"machine {number}")
    return HostReport(DeviceSpec(name, 8 << 30, 20e9, {"bf16": 1e12}, measured=True), host, (f"{name}: quick",))


def _link(interface: str = "eth0", **changes: Any) -> MeasuredLink:
    ends = (LinkEnd("box-1", interface), LinkEnd("box-2", interface))
    latency = (Latency(8, 9e-6, 10e-6, 30e-6), Latency(4096, 15e-6, 16e-6, 40e-6))
    bandwidth = (Bandwidth(1, 9e9, 8e9, 7e9, 7.5e9), Bandwidth(2, 9.4e9, 9.3e9, 6e9, 6.5e9))
    return replace(MeasuredLink(ends, NOW, latency=latency, bandwidth=bandwidth), **changes)


def _sources(folder: Path, *pairs: MeasuredPair, calibrated: dict[tuple[str, str], Measured] | None = None) -> Sources:
    probed, known = MeasuredLinks(folder / "probed.json"), KnownLinks(folder / "links.json", NOW)
    for pair in pairs:
        probed.store(pair)
    known.store(calibrated or {})
    return Sources(probed, KnownLinks(folder / "links.json", NOW), NOW)


def test_rails_as_they_were_probed(tmp_path: Path) -> None:
    pair = MeasuredPair(("box-1", "box-2"), NOW, (_link(),))
    cluster = cluster_of_reports([_report(1, 10000), _report(2, 10000)], _sources(tmp_path, pair))
    (pair,) = cluster.pairs
    (rail,) = pair.rails
    assert (rail.name, rail.alpha, rail.bandwidth, rail.transport) == ("eth0", 10e-6, 7e9 / 8, "tcp")
    assert cluster.notes == ("box-1: quick", "box-2: quick")
    assert cluster.cores is None


def test_a_host_with_two_gpus_is_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Figures(
        *("cuda:0", "A card", "torch", 20 << 30, 24 << 30, 8e11, {"bf16": 7e13}, 5e-6),
        copies=Copies(12e9, 10e9, 8e-6),
        count=2,
    )
    monkeypatch.setattr(cluster_live, "measure_figures", lambda **_: figures)
    monkeypatch.setattr(cluster_live, "free_now", lambda one: (20 << 30) + int(one.unit[-1]))
    report = parse_report(report_text(rank="none"), "here")
    own = report.device.name
    assert [(one.name, one.host, one.device, one.memory - (20 << 30)) for one in report.devices] == [
        (f"{own}-0", own, "cuda:0", 0),
        (f"{own}-1", own, "cuda:1", 1),
    ]
    here = [(one.name, one.device, one.memory - (20 << 30)) for one in devices_here("cuda", rank="none")]
    assert here == [("cuda:0", "cuda:0", 0), ("cuda:1", "cuda:1", 1)]
    pair = MeasuredPair(("box-1", "box-2"), NOW, (_link(),))
    one = _report(1, 10000)
    card = replace(one.device, device="cuda:0", copy_rate=1e9, copy_seconds=5e-6)
    two = msgspec.structs.replace(one, device=card, others=(replace(card, device="cuda:1"),))
    cluster = cluster_of_reports([two, _report(2, 10000)], _sources(tmp_path, pair))
    assert [one.name for one in cluster.devices] == ["box-1-0", "box-1-1", "box-2"]
    for name in ("box-1-0", "box-1-1"):
        rail = cluster.pair(name, "box-2")
        assert rail is not None
        assert (rail.alpha, rail.bandwidth) == (pytest.approx(15e-6), pytest.approx(1 / (8 / 7e9 + 1e-9)))
    inside = cluster.pair("box-1-0", "box-1-1")
    assert inside is not None
    assert (inside.alpha, inside.bandwidth) == (pytest.approx(11e-6), pytest.approx(1 / (2e-9 + 1 / 8e9)))


def test_processors_and_a_gpu_that_is_named_are_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for unit, copies in (("cpu", None), ("cuda:1", Copies(12e9, 10e9, 8e-6))):
        figures = Figures(
            unit, "It", "it", 20 << 30, 24 << 30, 8e11, {"bf16": 7e13}, 5e-6, copies=copies, count=1 + bool(copies)
        )
        monkeypatch.setattr(cluster_live, "measure_figures", lambda figures=figures, **_: figures)
        monkeypatch.setattr(cluster_live, "free_now", lambda one: one.memory_free)
        assert [one.name for one in devices_here(unit, rank="none")] == [unit]
        report = parse_report(report_text(rank="none"), "here")
        assert len(report.devices) == figures.count


def test_gpus_that_are_not_alike_are_measured_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(unit: str = "cuda", **_: object) -> Figures:
        number = int(unit.partition(":")[2] or 0)
        others = tuple(f"cuda:{each}" for each in range(2) if each != number)
        return Figures(f"cuda:{number}", "It", "it", 1, (8 << number) << 30, 8e11, {"bf16": 7e13}, 5e-6, unlike=others)

    monkeypatch.setattr(cluster_live, "measure_figures", measured)
    monkeypatch.setattr(cluster_live, "free_now", lambda one: one.memory_total)
    found = [(one.name, one.memory >> 30) for one in devices_here("cuda", rank="none")]
    assert found == [("cuda:0", 8), ("cuda:1", 16)]
    assert [one.name for one in devices_here("cuda:1", rank="none")] == ["cuda:1"]
    report = parse_report(report_text(rank="none"), "here")
    assert [(one.device, one.memory >> 30) for one in report.devices] == found


def test_links_that_share_something_get_what_they_got_together() -> None:
    together = Bandwidth(1, 9.3e9, 12e9, 9e9, 9e9)
    pair = MeasuredPair(("box-1", "box-2"), NOW, (_link("eth0"), _link("eth1")), together)
    rails = rails_of_pair(pair, NOW).rails
    assert [rail.bandwidth for rail in rails] == [pytest.approx(7e9 / 8 / 2)] * 2
    wide = replace(pair, together=Bandwidth(1, 30e9, 30e9, 30e9, 30e9))
    assert rails_of_pair(wide, NOW).rails[0].bandwidth == 7e9 / 8


def test_faulty_links_are_left_out_and_old_ones_noted(tmp_path: Path) -> None:
    faulty = _link("eth1", fault="stall", detail="nothing arrives", latency=(), bandwidth=())
    pair = MeasuredPair(("box-1", "box-2"), NOW - 40 * 86400, (_link(), faulty))
    found = rails_of_pair(pair, NOW)
    assert [rail.name for rail in found.rails] == ["eth0"]
    assert "eth1 is left out: nothing arrives" in found.notes[0]
    assert "measured 40 days ago" in found.notes[1]
    # What was measured to be dead is not guessed to be well.
    dead = MeasuredPair(("box-1", "box-2"), NOW, (faulty,))
    cluster = cluster_of_reports([_report(1, 10000), _report(2, 10000)], _sources(tmp_path, dead))
    assert cluster.pairs == ()


def test_then_as_the_fabric_measured_them_then_guessed(tmp_path: Path) -> None:
    ends = ("machine 1 eth0 card0", "machine 2 eth0 card0")
    sources = _sources(tmp_path, calibrated={ends: Measured(20e-6, 1e-9, 2e-9)})
    cluster = cluster_of_reports([_report(1, 10000, 2500), _report(2, 10000, 1000)], sources)
    (pair,) = cluster.pairs
    first, second = pair.rails
    assert (first.name, first.alpha, first.bandwidth) == ("eth0", 20e-6, pytest.approx(0.5e9))
    assert (second.name, second.bandwidth) == ("eth1", pytest.approx(1e9 / 8 * 0.94))
    notes = [note for note in cluster.notes if "guessed" in note]
    assert len(notes) == 1
    assert "eth1 are guessed from its speed, 1 Gb/s; measure them: ferrule links probe box-2" in notes[0]


def test_machines_without_a_common_subnet_have_no_link(tmp_path: Path) -> None:
    cluster = cluster_of_reports([_report(1, 1000), _report(2)], _sources(tmp_path))
    assert cluster.pairs == ()
    assert any("no cable is known" in note for note in cluster.notes)


def test_the_same_machine_or_name_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="box-1 and box-1 are the same machine"):
        cluster_of_reports([_report(1), _report(1)], _sources(tmp_path))
    with pytest.raises(ConfigError, match="two machines call themselves 'box'"):
        cluster_of_reports([_report(1, name="box"), _report(2, name="box")], _sources(tmp_path))


def _printed(report: HostReport) -> str:
    return msgspec.json.encode(report).decode()


def test_a_report_comes_back() -> None:
    report = _report(3, 1000, 0)
    assert parse_report(f"Welcome to box-3!\n{_printed(report)}\n", "box-3") == report
    for text in ("", "hello", '{"ferrule_device": 2}', '{"ferrule_device": 1, "device": 3}', '{"ferrule_device": 1,'):
        with pytest.raises(LinkError, match=r"box-3 .*the same version of Ferrule as here"):
            parse_report(text, "box-3")
    with pytest.raises(LinkError, match="memory must be more than 0"):
        parse_report(_printed(report).replace(str(8 << 30), "-1"), "box-3")


def test_other_hosts_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told").write_text(_printed(_report(2, 1000)))
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        'case "$*" in *"-- box-2 ferrule plan --device-json") cat "${0%/*}/told";;\n'
        '*gone*) echo "No route to host" >&2; exit 255;; *bare*) exit 127;;\n'
        '*) echo "no such option" >&2; exit 2;; esac\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(cluster_live, "own_report", lambda *, rank, fresh: _report(1, 1000))
    cluster = live_cluster(["box-2"], rank="here", sources=_sources(tmp_path))
    assert [device.name for device in cluster.devices] == ["box-1", "box-2"]
    assert cluster.pairs[0].rails[0].name == "eth0"
    for host, told in [
        ("gone", "cannot log in to gone: No route to host; .*ssh-copy-id gone"),
        ("bare", "no `ferrule` on bare; install Ferrule there"),
        ("old", "failed on old: no such option; it must be of the same version"),
        ("-x", "is no host"),
    ]:
        with pytest.raises(LinkError, match=told):
            live_cluster([host], rank="here", sources=_sources(tmp_path))


def test_sources_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pair = MeasuredPair(("box-1", "box-2"), time.time(), (_link(),))
    MeasuredLinks().store(pair)
    found = Sources.of_this_machine().between(_report(1).host, _report(2).host)
    assert [rail.alpha for rail in found.rails] == [10e-6]
    assert found.notes == ()


def test_a_machine_without_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = SimpleNamespace(unit="cpu", count=0, unlike=(), notes=("no meter",))
    monkeypatch.setattr(cluster_live, "measure_figures", lambda **_: figures)
    monkeypatch.setattr(cluster_live, "free_now", lambda _: 1 << 30)
    monkeypatch.setattr(
        cluster_live, "device_from", lambda _, name, memory: DeviceSpec(name, memory, 1e9, {"bf16": 1e12})
    )
    assert [note.partition(": ")[2] for note in cluster_live.own_report(rank="x").notes] == ["no meter"]
    monkeypatch.setattr(cluster_live, "missing", lambda extra: "torch" if extra == "engine" else None)
    assert "it cannot run models yet; on it: " in cluster_live.own_report(rank="x").notes[1]
