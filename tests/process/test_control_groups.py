"""Time of the processors that control groups of both versions leave to a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.process.control_groups import processor_quota

SECOND = {"proc/self/cgroup": "0::/shop/one\n", "sys/fs/cgroup/shop/one/cpu.max": "max 100000\n"}
FIRST = {
    "proc/self/cgroup": "5:cpu,cpuacct:/one\n4:memory:/other\n",
    "sys/fs/cgroup/cpu/one/cpu.cfs_quota_us": "25000\n",
    "sys/fs/cgroup/cpu/one/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (SECOND, None),
        (SECOND | {"sys/fs/cgroup/shop/cpu.max": "150000 100000\n"}, 1.5),
        (SECOND | {"sys/fs/cgroup/shop/cpu.max": "damaged"}, None),
        # Within a container the path is the host's, and only the top is there.
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "2500 5000"}, 0.5),
        (FIRST, 0.25),
        (FIRST | {"sys/fs/cgroup/cpu/one/cpu.cfs_quota_us": "-1\n"}, None),
    ],
)
def test_the_least_quota_of_all_groups_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processor_quota(tmp_path) == quota
