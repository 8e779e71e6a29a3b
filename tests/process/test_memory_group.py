"""The kernel holds processes to a group's memory, and nothing is left of the group, however its maker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ferrule.errors import ConfigError
from ferrule.process.memory_group import MemoryGroup

LIMIT = 64 << 20
SOON = 60.0
TAKES = "import sys; taken = b'x' * int(sys.argv[1])"
MAKES = """
import subprocess, sys, time
from ferrule.process.memory_group import MemoryGroup
with MemoryGroup(1 << 26) as group:
    with group.inside():
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print(group._path, child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def group() -> MemoryGroup:
    found = MemoryGroup(LIMIT)
    try:
        with found:
            pass
    except ConfigError as error:
        pytest.skip(str(error))
    return found


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # which nobody may have waited for yet
    except psutil.NoSuchProcess:
        return False


def taking(size: int) -> int:
    return subprocess.run([sys.executable, "-S", "-c", TAKES, str(size)], timeout=SOON, check=False).returncode


def test_what_takes_more_is_killed_and_others_are_not(group: MemoryGroup) -> None:
    with group:
        with group.inside():
            assert taking(LIMIT // 4) == 0
            assert taking(2 * LIMIT) == -signal.SIGKILL
        assert taking(2 * LIMIT) == 0, "who made it is outside again"
        assert LIMIT // 4 < group.peak <= LIMIT
    assert not group._path.exists()


def test_a_maker_that_is_killed_leaves_neither_group_nor_processes(group: MemoryGroup) -> None:
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
        MemoryGroup(LIMIT, tmp_path)
