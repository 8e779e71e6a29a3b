"""Groups over RDMA on stock kernels: soft-RoCE and our own driver with both types of queue pairs, and soft-iWARP."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ferrule.lab.vm import PYTEST, RDMA, Guest, Result, VmLab, complaints
from ferrule.lab.vm.image.sources import host_release
from ferrule.lab.vm.options import machines_with
from ferrule.links import MeasuredPair

pytestmark = pytest.mark.vm

DEADLINE = 600
"""Seconds for a guest that takes about 100 on a quiet machine."""

HERE = Path(__file__).parent
DRIVER = HERE.parents[1] / "driver" / "kernel"

SETUP = """
set -e
ip link add rail0 type dummy; ip link set rail0 mtu 4200 up; ip addr add 10.0.0.1/24 dev rail0
ip link add rail1 type dummy; ip link set rail1 up; ip addr add 10.0.1.1/24 dev rail1
rdma link add rxe0 type rxe netdev rail0
rdma link add siw0 type siw netdev rail1
"""

OUR_SETUP = """
set -e
ip link set frl0 up; ip addr add 10.0.2.1/24 dev frl0
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
from ferrule.launch import LocalLauncher

for name in ("verbs", "tcp"):
    env = {"FERRULE_TRANSPORT": name, "FERRULE_VERBS_DEVICES": "rxe0", "FERRULE_TIMEOUT": "60s"}
    with LocalLauncher([sys.executable, "/lab/latency.py"], 2, env=env) as job:
        assert job.wait(150).exit_code == 0
"""

PROBE = """
ip addr add 10.0.0.2/24 dev rail0
python3 /lab/probe_in_guest.py rxe0
"""
"""Two addresses on one interface are a link between two ends in one guest."""

PYTHON = ["numpy", "ferrule", "psutil", *PYTEST, "hypothesis", "_hypothesis_globals", "sortedcontainers"]
MODULES = ["rdma_rxe", "siw", "rdma_ucm"]
OUR_MODULES = ["ib_uverbs", "rdma_ucm", "thunderbolt"]
OUR_WIRE = {"/etc/modprobe.d/ferrule-rdma.conf": "options ferrule_rdma loopback=1\n"}


OURS = [("RC", "ferrule0"), ("UC", "ferrule0")]
DEVICES = [("RC", "rxe0"), ("UC", "rxe0"), ("RC", "siw0")]


@pytest.fixture(scope="module")
def newer_lab() -> VmLab:
    """With the kernel of the backports: that of Debian 12 (6.1) goes down now and then when ranks on rxe are killed."""
    return VmLab(suite=f"{host_release()}-backports")


def cases_of_the_fabric(
    lab: VmLab, devices: Sequence[tuple[str, str]], cases: Sequence[str] = (), more: str = ""
) -> Result:
    """``more``: what the guest does after them."""
    arguments = shlex.join(cases)
    runs = [f"python3 /lab/verbs_in_guest.py {kind} {device} {arguments}" for kind, device in devices]
    ours, others = (any((device == "ferrule0") is own for _, device in devices) for own in (True, False))
    guest = Guest(
        script="\n".join(
            [SETUP if others else "", OUR_SETUP if ours else "", *runs, more, "lab-kernel-log > /results/log"]
        ),
        modules=[
            *(MODULES if others else ()),
            *((*OUR_MODULES, lab.build(DRIVER, "ferrule_rdma")) if ours else ()),
        ],
        python=PYTHON,
        files={
            "/tests/fabric": HERE.parent / "fabric",
            "/lab/verbs_in_guest.py": HERE / "guest" / "verbs_in_guest.py",
            "/lab/probe_in_guest.py": HERE / "guest" / "probe_in_guest.py",
            **OUR_WIRE,
        },
    )
    result = lab.run(guest, DEADLINE).check()
    for kind, device in devices:
        outcome = json.loads(result.files[f"{kind}-{device}.json"])
        assert outcome, result.console
        assert not {name: problem for name, problem in outcome.items() if problem}, result.console
    assert not complaints(log := result.files["log"].decode()), log
    return result


@pytest.mark.slow
def test_every_type_of_queue_pair_and_the_probe(vm_lab: VmLab) -> None:
    result = cases_of_the_fabric(vm_lab, DEVICES, ["sweep of 2"], PROBE)
    links = msgspec.json.decode(result.files["probe.json"], type=MeasuredPair).links
    assert [(link.transport, link.fault) for link in links] == [("tcp", ""), ("verbs", "")], links
    rdma = links[1]
    assert [one.size for one in rdma.latency] == [64, 4096]
    assert 0 < rdma.latency[0].minimum < 1
    assert min(rdma.forth, rdma.back, *rdma.both) > 0


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "device"), DEVICES)
def test_cases_of_the_fabric(newer_lab: VmLab, kind: str, device: str) -> None:
    cases_of_the_fabric(newer_lab, [(kind, device)])


@pytest.mark.soak
@pytest.mark.parametrize("series", ["6.12", "newest"])
@pytest.mark.parametrize(("kind", "device"), OURS)
def test_cases_of_the_fabric_on_our_driver(series: str, kind: str, device: str) -> None:
    cases_of_the_fabric(machines_with(series, RDMA), [(kind, device)])


@pytest.mark.soak
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
