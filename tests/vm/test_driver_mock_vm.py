"""The USB4 verbs driver on the mock core: two devices in one kernel, joined by a virtual cable."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_programs import compiled

from ferrule.lab.vm import Guest, VmLab, complaints
from ferrule.lab.vm.lab import RDMA
from ferrule.lab.vm.options import KERNELS, machines_with

pytestmark = pytest.mark.vm

HERE = Path(__file__).parent
DRIVER = HERE.parents[1] / "driver"
DEADLINE = 600
"""Seconds for a guest that takes about 30 on a quiet machine."""


def carries(lab: VmLab, programs: Path) -> None:
    mock = lab.build(DRIVER / "testing" / "mock_tb", "thunderbolt", stands_in=True)
    module = lab.build(DRIVER / "kernel", "ferrule_rdma")
    script = (HERE / "guest" / "driver_on_mock.sh").read_text()
    modules = ["ib_uverbs", "rdma_ucm", mock, module]
    storm = compiled(programs, "verbs_storm")
    files = lab.run(Guest(script=script, modules=modules, files=storm, memory_mb=1024), DEADLINE).check().files
    assert b"PORT_ACTIVE" in files["devinfo"]
    assert b"/pci" in files["parent"]
    assert files["address"] == files["address_again"]
    stats = dict(line.split() for line in files["stats"].decode().splitlines())
    assert int(stats["resent"]) > 0
    assert int(stats["rx_duplicate"]) > 0
    assert not complaints(log := files["dmesg"].decode()), log


@pytest.mark.slow
def test_two_ends_in_one_kernel(vm_lab: VmLab, tmp_path: Path) -> None:
    carries(vm_lab, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("series", KERNELS)
def test_on_every_kernel(series: str, tmp_path: Path) -> None:
    carries(machines_with(series, RDMA), tmp_path)
