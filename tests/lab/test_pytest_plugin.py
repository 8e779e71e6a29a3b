"""The fixture for tests of others, as they use it: in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]

TESTS = """
import subprocess
from ferrule.lab import pair

pytest_plugins = ["ferrule.lab.pytest_plugin"]
kept = []

def test_a_topology_and_a_profile(ferrule_lab):
    lab = ferrule_lab(pair().shaped(delay=1e-3))
    assert lab.cables[0].shaping(0).delay == 1e-3
    other = ferrule_lab("two-strix", seed=7)
    assert other.names == ("strix-1", "strix-2")
    program = other.popen(other.named("strix-2"), ["sh", "-c", "echo $FERRULE_HOST_ID; exec sleep 1000"],
                          stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "strix-2\\n"
    kept.append(program)

def test_nothing_is_left_of_the_one_before():
    assert kept[0].wait(20) == -9
"""


def test_labs_end_with_the_test_that_made_them(tmp_path: Path) -> None:
    path = tmp_path / "test_mine.py"
    path.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
