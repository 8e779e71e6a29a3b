"""The USB4 verbs driver in storms: devices that come and go under traffic, for hours if asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_programs import compiled

from ferrule.errors import GuestError
from ferrule.lab.vm import DEBUG_KERNELS, Guest, complaints
from ferrule.lab.vm.lab import RDMA
from ferrule.lab.vm.options import KERNELS, machines_with

pytestmark = [pytest.mark.soak, pytest.mark.vm]

HERE = Path(__file__).parent
DRIVER = HERE.parents[1] / "driver"
CYCLES = {"plug": 200, "reload": 50, "rxe": 20, "silence": 20, "garble": 40}
"""Numbers of cycles: the cable pulled; the module, or soft-RoCE's, loaded again; one host silent without a word before;
a session begun amid requests with anything in them."""
PROGRAMS = ("verbs_storm", "verbs_crash", "verbs_nccl")
CRASHES = 20
SECONDS = 30
"""For a cycle that takes one on a quiet machine, three with a debug kernel."""


@pytest.mark.parametrize("storm", CYCLES)
@pytest.mark.parametrize("kernel", [*KERNELS, *DEBUG_KERNELS])
def test_storm(kernel: str, storm: str, tmp_path: Path) -> None:
    lab = machines_with(kernel, RDMA)
    slow = kernel in DEBUG_KERNELS
    cycles = CYCLES[storm] // (4 if slow else 1)
    times = {"PATIENCE": "600", "DEAD_MS": "8000" if slow else "3000"}
    guest = Guest(
        script=(HERE / "guest" / "storm_on_mock.sh").read_text(),
        modules=[
            *("rdma_rxe", "ib_uverbs", "rdma_ucm"),
            lab.build(DRIVER / "testing" / "mock_tb", "thunderbolt", stands_in=True),
            lab.build(DRIVER / "kernel", "ferrule_rdma"),
        ],
        files=compiled(tmp_path, *PROGRAMS),
        env={"STORM": storm, "CYCLES": str(cycles), "CRASHES": str(CRASHES), **times},
        memory_mb=3072 if slow else 1024,
    )
    try:
        files = lab.run(guest, 600 + SECONDS * (cycles + CRASHES)).check().files
    except GuestError as error:
        (tmp_path / "console").write_text(error.console)
        raise
    print(storm, kernel, files["storm"].decode().splitlines()[-1])  # noqa: T201
    log = files["dmesg"].decode()
    (tmp_path / "log").write_text(log)
    assert not complaints(log), log
