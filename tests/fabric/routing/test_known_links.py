"""Remembered costs of links: for which links, for how long, and the treatment of a damaged file."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import run

from ferrule.fabric.join.addresses import Interface
from ferrule.fabric.join.decisions import known_to_both
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.messages import PairRails, Reached
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.known_links import MAX_AGE_SECONDS, Ends, KnownLinks, link_ends
from ferrule.fabric.routing.paths import Rail

NOW = 1e9
ENDS: Ends = ("b eth0", "a eth0")
MEASURED = Measured(1e-5, up=1e-9, down=2e-9)


def host(name: str, *, identity: str = "hardware 1000", address: str = "10.0.0.1") -> RankHost:
    face = Interface("eth0", address, 24, identity=identity)
    return RankHost(name, name, 1, (0,), "auto", interfaces=(face,), identity=f"id of {name}")


def test_what_was_measured_is_known_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "ferrule" / "links.json"
    KnownLinks(path, NOW).store({ENDS: MEASURED})
    later = KnownLinks(path, NOW + 3600)
    assert later.find(ENDS) == replace(MEASURED, at=NOW)
    # Another time the other host may have the higher rank.
    assert later.find((ENDS[1], ENDS[0])) == Measured(1e-5, up=2e-9, down=1e-9, at=NOW)
    assert later.find(("b eth0", "a eth1")) is None
    later.store({ENDS: replace(MEASURED, sockets=2)})
    assert KnownLinks(path, NOW + 3600).find(ENDS) == replace(MEASURED, sockets=2, at=NOW + 3600)
    assert later.find(None) is None
    assert [file.name for file in path.parent.iterdir() if file.suffix == ".json"] == ["links.json"]


def test_old_numbers_and_those_of_the_future_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    KnownLinks(path, NOW).store({ENDS: MEASURED})
    assert KnownLinks(path, NOW + MAX_AGE_SECONDS).find(ENDS) is not None
    assert KnownLinks(path, NOW + MAX_AGE_SECONDS + 1).find(ENDS) is None
    assert KnownLinks(path, NOW - 1).find(ENDS) is None


def test_the_newest_stay_when_there_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    KnownLinks(path, NOW).store({ENDS: MEASURED})
    KnownLinks(path, NOW + 1).store({("a", str(number)): MEASURED for number in range(300)})
    assert len(json.loads(path.read_text())["links"]) == 300
    assert KnownLinks(path, NOW + 1).find(ENDS) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: '{"version": 3, "links": []}',
        lambda text: '{"version": 3, "links": {"tcp | a eth0 | b eth0": {"alpha": 1e-5}}}',
        lambda text: re.sub(r'(?<="alpha": )[^,]+', "-1.0", text),
        lambda text: re.sub(r'(?<="alpha": )[^,]+', "NaN", text),
        lambda text: re.sub(r'(?<="alpha": )[^,]+', '"quick"', text),
        lambda text: text.replace('"version": 3', '"version": 2'),
        lambda text: text.replace('"sockets": 1', '"sockets": 0'),
    ],
)
def test_a_damaged_file_is_written_anew(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    KnownLinks(path, NOW).store({ENDS: MEASURED})
    path.write_text(damage(path.read_text()))
    links = KnownLinks(path, NOW)
    assert links.find(ENDS) is None
    links.store({ENDS: MEASURED})
    assert KnownLinks(path, NOW).find(ENDS) is not None


def test_where_nothing_can_be_kept_links_are_measured_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    links = KnownLinks(tmp_path / "file" / "links.json", NOW)
    with caplog.at_level(logging.INFO):
        links.store({ENDS: MEASURED})
    assert "cannot be kept" in caplog.text
    assert links.find(ENDS) is None


def test_a_link_is_known_by_both_ends_whichever_asks() -> None:
    low, high = host("a"), host("b", address="10.0.0.2")
    up = Rail(0, ("10.0.0.2", 5000), "10.0.0.1", "eth0", "eth0")
    ends = link_ends(low, high, up, higher=False)
    assert ends is not None
    assert link_ends(high, low, replace(up, address=("10.0.0.1", 5000)), higher=True) == ends
    others = [host("c"), host("b", identity="hardware 100"), replace(high, identity="another kernel")]
    assert len({ends, *(link_ends(low, other, up, higher=False) for other in others)}) == 4


def test_what_is_another_link_tomorrow_is_not_remembered() -> None:
    up = Rail(0, ("10.0.0.2", 5000), "10.0.0.1", "eth0", "eth0")
    assert link_ends(host("a", identity=""), host("b"), up, higher=False) is None
    assert link_ends(replace(host("a"), identity=""), host("b"), up, higher=False) is None
    assert link_ends(host("a"), host("b"), Rail(0, ("192.0.2.1", 5000)), higher=False) is None


def test_loopback_is_a_link_of_its_own() -> None:
    ends = link_ends(host("a"), host("a"), Rail(0, ("127.0.0.1", 5000)), higher=False)
    assert ends == ("id of a loopback", "id of a loopback")


def test_a_pair_is_measured_unless_both_know_all_its_rails() -> None:
    one = Measured(1e-5, 1e-9, 2e-9)
    known = [{1: {0: one}, 2: {0: one}}, {0: {0: one, 1: one}}, {0: {0: one}}]
    reports = [Reached((), {}, each) for each in known]
    assert known_to_both(reports, [PairRails(1, 0, (0,)), PairRails(2, 0, (0,))]) == {
        (1, 0): {0: one},
        (2, 0): {0: one},
    }
    assert known_to_both(reports, [PairRails(1, 0, (0, 1)), PairRails(2, 1, (0,))]) == {}


@pytest.mark.slow
def test_ranks_measure_once_unless_told_otherwise(tmp_path: Path) -> None:
    def start(**more: str) -> list[str]:
        env = {"XDG_CACHE_HOME": str(tmp_path), **more}
        return [report["text"] for report in run("splits", 2, transport="tcp", env=env)]

    assert all("(measured at this start)" in text for text in start())
    assert all(re.search(r"Gb/s \(measured \d{4}-\d\d-\d\d \d\d:\d\d\)", text) for text in start())
    assert all("(measured at this start)" in text for text in start(FERRULE_CALIBRATE="fresh"))
    assert not any("measured" in text for text in start(FERRULE_CALIBRATE="0"))


def test_an_algorithm_can_be_asked_for() -> None:
    env = {"FERRULE_ALGORITHM": "ring", "FERRULE_CALIBRATE": "0"}
    for report in run("splits", 3, transport="tcp", env=env):
        assert re.search(r"all_reduce +larger +ring", report["text"])
        assert "pieces" not in report["text"].partition("broadcast")[0]
