"""Cores of one's own: who gets which, until when, and in what order they are taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferrule.process.cores import in_order

CLAIM = """
import sys
from pathlib import Path
from ferrule.process.cores import claim
print(*claim([0, 1, 2], int(sys.argv[2]), Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


class Claimer:
    """A process that claims some of three cores, and lives until it is ended."""

    def __init__(self, directory: Path, count: int) -> None:
        command = [sys.executable, "-c", CLAIM, str(directory), str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def cores(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[[int], Claimer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Claimer] = []

    def one(count: int) -> Claimer:
        started.append(Claimer(tmp_path, count))
        return started[-1]

    yield one
    for each in started:
        each.kill()


def test_too_few_are_left_to_others(start: Start) -> None:
    assert [start(count).cores() for count in (2, 2, 1)] == ["0 1", "", "2"]


def test_those_that_ask_at_once_get_different_ones(start: Start) -> None:
    claimers = [start(1) for _ in range(3)]
    assert sorted(each.cores() for each in claimers) == ["0", "1", "2"]


def test_a_killed_owner_leaves_its_cores(start: Start) -> None:
    owner = start(3)
    assert owner.cores() == "0 1 2"
    owner.kill()
    assert start(3).cores() == "0 1 2"


def cpu(cpus: Path, number: int, package: int, core: int, capacity: int | None = None) -> None:
    topology = cpus / f"cpu{number}" / "topology"
    topology.mkdir(parents=True)
    (topology / "physical_package_id").write_text(f"{package}\n")
    (topology / "core_id").write_text(f"{core}\n")
    if capacity is not None:
        (cpus / f"cpu{number}" / "cpu_capacity").write_text(f"{capacity}\n")


def test_cores_of_their_own_come_first(tmp_path: Path) -> None:
    for number in range(8):  # as many processors number them: the second ones of all cores last, or side by side
        cpu(tmp_path / "far", number, 0, number % 4)
        cpu(tmp_path / "near", number, number // 4, number // 2)
    assert in_order(range(8), tmp_path / "far") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert in_order(range(8), tmp_path / "near") == [0, 2, 4, 6, 1, 3, 5, 7]
    assert in_order([7, 3, 2], tmp_path / "near") == [2, 7, 3]


def test_fast_cores_come_before_slow_ones(tmp_path: Path) -> None:
    for number, capacity in enumerate((400, 400, 1024, 1024)):
        cpu(tmp_path, number, 0, number, capacity)
    assert in_order(range(4), tmp_path) == [2, 3, 0, 1]


def test_where_nothing_is_told_they_go_by_number(tmp_path: Path) -> None:
    assert in_order({3, 1, 2}, tmp_path) == [1, 2, 3]


PIN = """
import os, threading
from ferrule.process import pin_to_free_cores
got = pin_to_free_cores(1)
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
thread.start(); thread.join()
assert seen == [set(got)] == [os.sched_getaffinity(0)], (seen, got)
print(len(got))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tie threads to cores")
def test_threads_that_it_starts_are_there_too(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "ferrule").mkdir(mode=0o700)
    done = subprocess.run([sys.executable, "-c", PIN], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr
