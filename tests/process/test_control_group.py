"""The kernel holds processes to a group's memory, and nothing is left of the group, however its maker ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ferrule.errors import ConfigError
from ferrule.process.control_group import ControlGroup, memory_limit, processor_limit

LIMIT = 64 << 20
SOON = 60.0
TAKES = """
import json, subprocess, sys
from ferrule.process.control_group import ControlGroup, memory_limit

def taking(size):
    taker = "import sys; taken = b'x' * int(sys.argv[1])"
    return subprocess.run([sys.executable, "-S", "-c", taker, str(size)], timeout=60, check=False).returncode

limit = int(sys.argv[1])
with ControlGroup(memory_limit(limit)) as group:
    with group.inside():
        inside = taking(limit // 4), taking(2 * limit)
    found = *inside, taking(2 * limit), group.peak
print(json.dumps([*found, group.path.exists()]))
"""
"""A process of its own: of those inside the kernel ends the largest one, which may be this."""
MAKES = """
import subprocess, sys, time
from ferrule.process.control_group import ControlGroup, memory_limit
with ControlGroup(memory_limit(1 << 26)) as group:
    with group.inside():
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print(group.path, child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def group() -> None:
    """There can be one here."""
    try:
        with ControlGroup(memory_limit(LIMIT)):
            pass
    except ConfigError as error:
        pytest.skip(str(error))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # which nobody may have waited for yet
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("group")
def test_what_takes_more_is_killed_and_others_are_not() -> None:
    done = subprocess.run([sys.executable, "-c", TAKES, str(LIMIT)], stdout=subprocess.PIPE, timeout=SOON, check=True)
    some, more, outside, peak, left = json.loads(done.stdout)
    assert (some, more) == (0, -signal.SIGKILL)
    assert outside == 0, "who made it is outside again"
    assert LIMIT // 4 < peak <= LIMIT
    assert not left


@pytest.mark.usefixtures("group")
def test_a_maker_that_is_killed_leaves_neither_group_nor_processes() -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKES], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    path, _, pid = maker.stdout.readline().strip().rpartition(" ")
    assert Path(path).is_dir()
    maker.kill()
    maker.wait(SOON)
    deadline = time.monotonic() + SOON
    while Path(path).exists():
        assert time.monotonic() < deadline, f"{path} is still there"
        os.sched_yield()
    assert not alive(int(pid))


def test_a_machine_without_groups_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs Linux, root.*systemd-run"):
        ControlGroup(memory_limit(LIMIT), tmp_path)


def test_a_quota_is_no_shorter_than_the_kernel_takes() -> None:
    assert processor_limit(0.5).new["cpu.max"] == "2500 5000"
    assert processor_limit(2).old == {
        "cpu.cfs_period_us": "5000",
        "cpu.cfs_quota_us": "10000",
        "cpu.cfs_burst_us": "10000",
    }
    assert processor_limit(0.1).new["cpu.max"] == "1000 10000"
    with pytest.raises(ConfigError, match="more than 0 cores"):
        processor_limit(0)
