"""Memory told by the machine and by control groups of both versions."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.process.memory import memory_free


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


FREES_MUCH = """
from ferrule.process.memory import private_bytes, trim
before = private_bytes()
blocks = [bytes(1024) for _ in range(1 << 16)]
last = bytes(1024)  # behind which nothing is free, so that the library keeps all of it
del blocks
kept = private_bytes() - before
trim()
print(kept, private_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library gives memory back")
def test_freed_memory_is_given_back() -> None:
    """In a process of its own: this one may have room left from other tests."""
    said = subprocess.run([sys.executable, "-c", FREES_MUCH], capture_output=True, text=True, check=True, timeout=60)
    kept, left = map(int, said.stdout.split())
    assert kept > 32 << 20
    assert left < 16 << 20


def test_memory_of_the_machine_without_control_groups(tmp_path: Path) -> None:
    free, total = memory_free(tmp_path)
    assert 0 < free < total


@pytest.mark.parametrize(
    ("groups", "top", "limit", "use"),
    [
        ("0::/box/app\n", "sys/fs/cgroup/box", "memory.max", "memory.current"),
        (
            "7:cpu:/\n4:hugetlb,memory:/box/app\n0::/\n",
            "sys/fs/cgroup/memory/box",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
        # In a container: the path is the host's, and only the top is seen.
        ("0::/docker/5a\n", "sys/fs/cgroup", "memory.max", "memory.current"),
    ],
)
def test_the_tightest_control_group_counts(groups: str, top: str, limit: str, use: str, tmp_path: Path) -> None:
    stat = "inactive_file 100\ntotal_inactive_file 100\nactive_file 7\n"
    _write(
        tmp_path,
        {
            "proc/self/cgroup": groups,
            f"{top}/{limit}": "1000000\n",
            f"{top}/{use}": "400100\n",
            f"{top}/memory.stat": stat,
        },
    )
    assert memory_free(tmp_path) == (600_000, 1_000_000)


def test_a_control_group_without_limit_does_not_count(tmp_path: Path) -> None:
    _write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    _write(tmp_path, {"sys/fs/cgroup/memory.current": "5\n"})
    assert memory_free(tmp_path)[1] > 1 << 20
