"""Groups over RDMA on stock kernels: soft-RoCE with both types of queue pairs, and soft-iWARP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferrule.lab.vm import PYTEST, Guest, VmLab

# Soak: minutes, and the guest of kernel 6.1 was seen to go down while ranks on rxe were being killed.
pytestmark = [pytest.mark.soak, pytest.mark.vm]

DEADLINE = 600
"""Seconds for a guest that takes about 100 on a quiet machine."""

HERE = Path(__file__).parent

SETUP = """
set -e
ip link add rail0 type dummy; ip link set rail0 mtu 4200 up; ip addr add 10.0.0.1/24 dev rail0
ip link add rail1 type dummy; ip link set rail1 up; ip addr add 10.0.1.1/24 dev rail1
rdma link add rxe0 type rxe netdev rail0
rdma link add siw0 type siw netdev rail1
mkdir -p /results
"""

LATENCY = """
import sys
import time

import numpy as np

import ferrule.fabric as fabric

with fabric.init(strict=True) as group:
    for size in (8, 4096, 32768):
        x = np.zeros(size // 4, np.float32)
        taken = []
        for _ in range(300):
            begin = time.perf_counter()
            group.all_reduce(x)
            taken.append((time.perf_counter() - begin) * 1e6)
        if group.rank == 0:
            taken.sort()
            line = f"{group.describe().transports} {size} B: min {taken[0]:.0f} us, median {taken[150]:.0f} us"
            sys.stdout.write(line + "\\n")
"""

LAUNCH = """
import sys
from ferrule.cluster import launch_local

for name in ("verbs", "tcp"):
    env = {"FERRULE_TRANSPORT": name, "FERRULE_VERBS_DEVICES": "rxe0", "FERRULE_TIMEOUT": "60s"}
    with launch_local([sys.executable, "/lab/latency.py"], 2, env=env) as job:
        assert job.wait(150).exit_code == 0
"""

PYTHON = ["numpy", "ferrule", "psutil", *PYTEST, "hypothesis", "_hypothesis_globals", "sortedcontainers"]
MODULES = ["rdma_rxe", "siw", "rdma_ucm"]


@pytest.mark.parametrize(("kind", "device"), [("RC", "rxe0"), ("UC", "rxe0"), ("RC", "siw0")])
def test_cases_of_the_fabric(vm_lab: VmLab, kind: str, device: str) -> None:
    guest = Guest(
        script=f"{SETUP}\npython3 /lab/verbs_in_guest.py {kind} {device}",
        modules=MODULES,
        python=PYTHON,
        files={
            "/tests/fabric": HERE.parent / "fabric",
            "/lab/verbs_in_guest.py": HERE / "verbs_in_guest.py",
        },
    )
    result = vm_lab.run(guest, DEADLINE).check()
    outcome = json.loads(result.files["outcome.json"])
    assert outcome, result.console
    assert not {name: problem for name, problem in outcome.items() if problem}, result.console


def test_latency_beside_tcp(vm_lab: VmLab, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures of an emulated machine say something only beside each other."""
    guest = Guest(
        script=f"{SETUP}\npython3 /lab/launch.py",
        modules=MODULES,
        python=PYTHON,
        files={"/lab/latency.py": LATENCY, "/lab/launch.py": LAUNCH},
    )
    result = vm_lab.run(guest, DEADLINE).check()
    lines = [line for line in result.console.splitlines() if "median" in line]
    assert len(lines) == 6, result.console
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201
