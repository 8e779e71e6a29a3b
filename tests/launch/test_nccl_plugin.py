"""NCCL's network plugin between two hosts with two cables: one is pulled, and then all."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from ferrule.hardware import pair
from ferrule.installation import nccl_plugin
from ferrule.lab import Lab, obstacle

SECONDS = 240.0
KEY = "5a" * 32
SOURCE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that plays NCCL's part."""
    if reason := obstacle():
        pytest.skip(reason)
    if nccl_plugin() is None:
        pytest.skip("this Ferrule was built without its plugin for NCCL")
    program = tmp_path_factory.mktemp("nccl") / "conformance"
    include = [f"-I{SOURCE / folder}" for folder in ("tests/native", "native")]
    source = SOURCE / "tests" / "native" / "nccl" / "conformance.cpp"
    subprocess.run(["c++", "-std=c++20", "-O1", *include, str(source), "-o", str(program), "-ldl"], check=True)
    return program


class Ranks:
    """One on each host. What NCCL would log is in a file of each."""

    def __init__(self, lab, program, folder, *words):
        self.logs = [folder / f"log{rank}" for rank in range(2)]
        self.both = []
        for rank, log in enumerate(self.logs):
            meet = ["--rank", str(rank), "--meet", str(folder / "meet")]
            with log.open("w") as errors:
                process = lab.popen(
                    rank,
                    [str(program), str(nccl_plugin()), "--traffic", *words, *meet],
                    env={"FERRULE_KEY": KEY, "NCCL_DEBUG": "INFO"},
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            self.both.append(process)

    def under_way(self):
        deadline = time.monotonic() + SECONDS
        while not all("under way" in log.read_text() for log in self.logs):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in self.both), self.said()
            time.sleep(0.02)

    def said(self):
        return [log.read_text() for log in self.logs]

    def ends(self):
        outcomes = []
        for process in self.both:
            told, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, self.said()
            outcomes.append(json.loads(told))
        return outcomes


@pytest.mark.slow
def test_a_pulled_cable_costs_no_message(conformance, tmp_path) -> None:
    """10,000 of them, up to 256 MB, over two rails, of which one ends on the way."""
    with Lab(pair(2).shaped(rate=10e9, delay=20e-6)) as lab:
        ranks = Ranks(lab, conformance, tmp_path, "10000", "--huge", str(256 << 20))
        ranks.under_way()
        lab.cables[0].cut()
        for one in ranks.ends():
            assert one["failed"] == 0
            assert one["done"] >= 10_000
    assert all("rails over cable0 + cable1" in said for said in ranks.said())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut", "blackhole"])
def test_without_a_cable_all_messages_end_as_errors(conformance, tmp_path, fault) -> None:
    with Lab(pair(2).shaped(rate=1e9, delay=20e-6)) as lab:
        ranks = Ranks(lab, conformance, tmp_path, "20000", "--comms", "2", "--deadline", "10", "--may-fail", "1")
        ranks.under_way()
        for cable in lab.cables:
            getattr(cable, fault)()
        outcomes = ranks.ends()
    for one, said in zip(outcomes, ranks.said(), strict=True):
        assert one["failed"] > 0
        assert one["longest"] < 10
        assert "no heartbeat for 0.8" in said
