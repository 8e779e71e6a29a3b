"""Behaviour of a group where the system has no memory left."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from in_threads import on_all, thread_groups

from ferrule.errors import FabricError
from ferrule.fabric import Group

COUNT = 64 << 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit the address space")
def test_no_memory_for_a_collective_ends_the_group_and_not_the_process() -> None:
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr


def starve() -> None:
    groups = thread_groups(2)
    arrays = [np.ones(COUNT, np.float32) for _ in groups]
    on_all(groups, Group.barrier)  # threads, and what they need, are there
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))

    def body(group: Group) -> None:
        with pytest.raises(FabricError, match=r"rank \d has no memory left for this operation"):
            group.all_reduce(arrays[group.rank], quantized=True)  # it needs a quarter of that for its codes

    on_all(groups, body)


if __name__ == "__main__":
    starve()
