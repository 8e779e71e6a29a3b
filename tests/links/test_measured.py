"""Findings from measured numbers of a link, and the file that keeps them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from findings_manual import listed

import ferrule.links.measured.findings
from ferrule.links import (
    Bandwidth,
    Fault,
    Finding,
    Latency,
    LinkEnd,
    MeasuredLink,
    MeasuredLinks,
    MeasuredPair,
    Traffic,
    both_ways,
    examine,
    traffic,
)
from ferrule.links.traffic import Counters

GOOD = Bandwidth(1, 9.4e9, 9.4e9, 9.3e9, 9.3e9)
ENDS = (
    LinkEnd("a", "eth0", "10.0.0.1", "id-a", "6.17", "ethernet", 10e9),
    LinkEnd("b", "eth0", "10.0.0.2", "id-b", "6.17", "ethernet", 10e9),
)
QUICK = (Latency(64, 1e-5, 1.1e-5, 2e-5), Latency(4096, 1.5e-5, 1.6e-5, 3e-5), Latency(32768, 4e-5, 4.1e-5, 6e-5))
LINK = MeasuredLink(ENDS, at=1e9, mtu=1500, framing=1538 / 1448, latency=QUICK, bandwidth=(GOOD,))


def pair(link: MeasuredLink, at: float = 1e9) -> MeasuredPair:
    return MeasuredPair(("a", "b"), at, (link,))


def with_rates(*rates: float, **changes: object) -> MeasuredLink:
    return replace(LINK, bandwidth=(Bandwidth(1, *rates),), **changes)  # type: ignore[arg-type]


def found(link: MeasuredLink, earlier: MeasuredLink | None = None) -> list[tuple[str, str]]:
    findings = examine(pair(link), None if earlier is None else pair(earlier))
    return [(one.severity, one.id) for one in findings]


def test_a_good_link_has_no_findings() -> None:
    assert found(LINK) == []
    assert found(LINK, LINK) == []


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((9.4e9, 9.4e9, 3e9, 3e9), [("error", "probe-collapse")]),  # the sum is below one way
        ((9.4e9, 9.4e9, 2e9, 9e9), [("error", "probe-collapse")]),  # one of them starves
        ((9.4e9, 9.4e9, 5.5e9, 5.5e9), [("warning", "probe-shared")]),
        ((9.4e9, 9.4e9, 4.6e9, 4.6e9), [("warning", "probe-shared")]),  # half duplex, and what it costs to turn round
        ((9.4e9, 3e9, 9.3e9, 2.9e9), [("warning", "probe-asymmetric"), ("warning", "probe-slow")]),
        ((4.7e9, 4.7e9, 4.6e9, 4.6e9), [("warning", "probe-slow")]),  # half of what the cable trained at
    ],
)
def test_bandwidth_tells_what_is_wrong(rates: tuple[float, ...], expected: list[tuple[str, str]]) -> None:
    assert found(with_rates(*rates)) == expected


def test_a_cable_is_not_blamed_for_busy_processors() -> None:
    slow = with_rates(4.7e9, 4.7e9, 9e9, 9e9)
    busy = replace(slow, bandwidth=tuple(replace(one, busy=0.97) for one in slow.bandwidth))
    (warning,), (note,) = examine(pair(slow)), examine(pair(busy))
    assert (warning.severity, note.severity) == ("warning", "note")
    assert "Replug" in str(warning.cure)
    assert "Replug" not in str(note.cure)
    assert "97%" in str(note.evidence)


def test_the_worst_number_of_streams_counts() -> None:
    both = (replace(GOOD, both_forth=3e9, both_back=3e9), replace(GOOD, streams=2))
    assert found(replace(LINK, bandwidth=both)) == [("error", "probe-collapse")]


RECORDED: list[tuple[tuple[int, ...], str]] = [
    # Parts of the told rate, in thousandths: one way each, both ways each; and of the processors, in hundredths. In
    # labs on two cores. 1 and 10 Gb/s, well, with 1 and 4 streams:
    ((969, 971, 990, 992, 54), ""),
    ((996, 1008, 991, 988, 52), ""),
    ((1000, 1000, 878, 883, 99), ""),
    ((984, 950, 656, 490, 99), "limited"),
    # Collapse to 0.6:
    ((1000, 1000, 403, 300, 31), "collapse"),
    ((1008, 1010, 464, 259, 37), "collapse"),
    ((1013, 1000, 344, 338, 72), "collapse"),
    # Half duplex:
    ((1000, 1000, 576, 512, 41), "shared"),
    ((1009, 1003, 836, 542, 44), "shared"),
    # Beside three programs that compute: 1 Gb/s well, collapse to 0.6, half duplex; 10 Gb/s well, collapse to 0.6:
    ((1004, 1010, 1005, 1000, 100), ""),
    ((1003, 988, 448, 278, 100), "collapse"),
    ((997, 1007, 608, 532, 99), "limited"),
    ((681, 609, 398, 440, 100), "limited"),
    ((688, 621, 406, 418, 100), "limited"),
    # Beside ten of them: collapse to 0.6, 100 Mb/s and 1 Gb/s:
    ((998, 941, 403, 397, 100), "collapse"),
    ((967, 961, 404, 387, 100), "collapse"),
]


@pytest.mark.parametrize(("recorded", "verdict"), RECORDED)
def test_recorded_figures_are_told_apart(recorded: tuple[int, ...], verdict: str) -> None:
    *rates, busy = recorded
    assert both_ways(Bandwidth(1, *(rate * 1e7 for rate in rates), busy / 100)) == verdict


def test_processors_may_be_why_directions_share() -> None:
    busy = Bandwidth(1, 9.4e9, 9.4e9, 5.5e9, 5.5e9, busy=0.97)
    assert found(replace(LINK, bandwidth=(busy,))) == [("note", "probe-limited")]
    # What an idle machine showed counts more, although it was better.
    idle = Bandwidth(2, 9.4e9, 9.4e9, 6e9, 6e9, busy=0.4)
    assert found(replace(LINK, bandwidth=(busy, idle))) == [("warning", "probe-shared")]


def test_the_manual_lists_every_finding_and_no_other() -> None:
    assert ferrule.links.measured.findings.__file__ is not None
    source = Path(ferrule.links.measured.findings.__file__).read_text()
    used = set(re.findall(r'"(probe-[a-z-]+)"', source)) | {f"probe-{fault}" for fault in get_args(Fault) if fault}
    assert set(listed(probe=True)) == used


def test_thunderbolt_carries_less_than_its_cable() -> None:
    ends = tuple(replace(end, kind="thunderbolt", speed=40e9) for end in ENDS)
    assert found(replace(LINK, ends=ends)) == []
    assert found(with_rates(4e9, 4e9, 4e9, 4e9, ends=ends)) == [("warning", "probe-slow")]


def test_a_cable_that_trained_unequally_is_as_slow_as_it_says() -> None:
    ends = (ENDS[0], replace(ENDS[1], speed=4e9))
    assert found(with_rates(9.4e9, 3.8e9, 9.3e9, 3.7e9, ends=ends)) == []


def test_a_link_is_compared_with_what_it_was() -> None:
    unknown = tuple(replace(end, speed=None) for end in ENDS)
    now = with_rates(4.7e9, 4.7e9, 4.7e9, 4.7e9, ends=unknown)
    assert found(now, replace(LINK, ends=unknown)) == [("warning", "probe-slower")]
    other_card = tuple(replace(end, identity="id-c") for end in unknown)
    assert found(now, replace(LINK, ends=other_card)) == []
    nameless = tuple(replace(end, identity="") for end in unknown)
    assert found(replace(now, ends=nameless), replace(LINK, ends=nameless)) == []


@pytest.mark.parametrize("fault", ["stall", "one-way", "blocked", "large"])
def test_what_cannot_be_measured_is_an_error_with_a_cure(fault: str) -> None:
    link = MeasuredLink(ENDS, at=1e9, fault=fault, detail="frames received: 0 at a, 0 at b")  # type: ignore[arg-type]
    (finding,) = examine(pair(link))
    assert (finding.severity, finding.id, finding.hosts) == ("error", f"probe-{fault}", ("a", "b"))
    assert finding.evidence == (("ferrule links probe", link.detail),)
    assert finding.cure


def test_rdma_that_does_not_work_is_a_warning() -> None:
    rdma = MeasuredLink(ENDS, at=1e9, transport="verbs", fault="no-rdma", detail="rank 0: no GID")
    findings = examine(MeasuredPair(("a", "b"), 1e9, (LINK, rdma)))
    assert [(one.severity, one.id, one.subject) for one in findings] == [
        ("warning", "probe-no-rdma", "a eth0 ↔ b eth0, verbs")
    ]


def test_latency_counts_by_the_quickest_transport() -> None:
    slow = tuple(replace(one, median=1e-3) for one in QUICK)
    tcp = replace(LINK, latency=slow)
    assert [one.id for one in examine(MeasuredPair(("a", "b"), 1e9, (tcp,)))] == ["probe-latency"]
    assert examine(MeasuredPair(("a", "b"), 1e9, (tcp, replace(LINK, transport="verbs")))) == ()


def test_transports_are_compared_each_with_itself() -> None:
    unknown = tuple(replace(end, speed=None) for end in ENDS)
    tcp, verbs = (with_rates(rate, rate, rate, rate, ends=unknown) for rate in (1e9, 9e9))
    both = MeasuredPair(("a", "b"), 1e9, (tcp, replace(verbs, transport="verbs")))
    assert examine(both, both) == ()
    slower = replace(tcp, transport="verbs")
    assert [one.id for one in examine(MeasuredPair(("a", "b"), 1e9, (slower,)), both)] == ["probe-slower"]


def test_hosts_without_a_link_are_an_error() -> None:
    assert [one.id for one in examine(MeasuredPair(("a", "b"), 1e9))] == ["probe-no-link"]


def latency_finding(seconds: float) -> Finding:
    slow = tuple(Latency(size, seconds, seconds, seconds) for size in (4096, 32768))
    (finding,) = examine(pair(replace(LINK, latency=slow)))
    return finding


def test_latency_is_told_in_tokens() -> None:
    assert latency_finding(100e-6).severity == "note"
    finding = latency_finding(300e-6)
    assert finding.severity == "warning"
    assert "48 ms of waiting" in finding.why  # 160 × 300 µs
    assert "below 21 tokens/s" in finding.why


def test_latency_between_two_sizes_is_in_proportion() -> None:
    assert LINK.latency_of(18432) == pytest.approx(2.85e-5)  # the middle between 4 and 32 KiB
    assert LINK.latency_of(1 << 20) is None


def test_what_was_measured_is_known_afterwards_from_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "probed.json"
    measured = replace(pair(with_rates(9e9, 8e9, 7e9, 6e9)), together=Bandwidth(1, 4.0, 3.0, 2.0, 1.0))
    MeasuredLinks(path).store(measured)
    assert MeasuredLinks(path).pairs() == (measured,)
    assert MeasuredLinks(path).find("a", "b") == measured
    turned = MeasuredLinks(path).find("b", "a")
    assert turned is not None
    assert turned.links[0].bandwidth == (Bandwidth(1, 8e9, 9e9, 6e9, 7e9),)
    assert turned.links[0].ends == (ENDS[1], ENDS[0])
    assert turned.rates == (8e9, 9e9)
    MeasuredLinks(path).store(replace(turned, at=2e9))
    assert [one.at for one in MeasuredLinks(path).pairs()] == [2e9]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 7}',
        '{"version": 2, "pairs": {"a | b": {"hosts": ["a"]}}}',
        '{"version":2,"pairs":3}',
    ],
)
def test_a_damaged_file_knows_nothing_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "probed.json"
    path.write_text(text)
    assert MeasuredLinks(path).pairs() == ()
    MeasuredLinks(path).store(pair(LINK))
    assert MeasuredLinks(path).pairs() == (pair(LINK),)
    assert json.loads(path.read_text())["version"] == 2


def test_one_damaged_entry_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "probed.json"
    MeasuredLinks(path).store(pair(LINK))
    kept = json.loads(path.read_text())
    kept["pairs"]["c | d"] = {"hosts": ["c", "d"], "at": "yesterday", "links": [], "together": None}
    path.write_text(json.dumps(kept))
    assert MeasuredLinks(path).pairs() == (pair(LINK),)


def test_traffic_is_the_change_of_counters() -> None:
    before = {"eth0": Counters(1000, 500, 3), "eth1": Counters(9, 9, 9)}
    after = {"eth0": Counters(3000, 500, 5), "eth1": Counters(0, 4, 0), "eth2": Counters(7, 7, 1)}
    assert traffic(before, after, 2.0) == (
        Traffic("eth0", 1000.0, 0.0, 2, 5),
        Traffic("eth1", 0.0, 0.0, 0, 0),  # it began anew
        Traffic("eth2", 0.0, 0.0, 0, 1),
    )
