"""rdma-core's own Python tests on the driver's loopback device and on soft-RoCE, in one guest."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from ferrule.lab.vm import RDMA, Guest, VmLab, complaints
from ferrule.lab.vm.image.sources import host_release, newest_suite
from ferrule.lab.vm.options import KERNELS

pytestmark = [pytest.mark.soak, pytest.mark.vm]

DRIVER = Path(__file__).parents[2] / "driver"
DEADLINE = 6000
"""Seconds; on a host that is busy with other guests it took 800 once, and far more than 1600 at another time."""

SCRIPT = """
ip link add rail0 type dummy; ip link set rail0 mtu 4200 up; ip addr add 10.0.0.1/24 dev rail0
rdma link add rxe0 type rxe netdev rail0
rmmod ferrule_rdma; modprobe ferrule_rdma loopback=1 || exit 1
ip link set frl0 up; ip addr add 10.9.0.1/24 dev frl0
export PYTHONDONTWRITEBYTECODE=1
mkdir -p /results
for device in rxe0 ferrule0; do
    echo "ferrule: rdma-core's tests on $device" > /dev/kmsg
    timeout 2500 python3 /lab/rdma_core_in_guest.py $device /results/$device.json > /results/$device.log 2>&1
    status=$?
    tail -3 /results/$device.log
    [ $status = 0 ] || exit 1
done
rdma link delete rxe0
rmmod ferrule_rdma || exit 1
lab-kernel-log > /results/dmesg
"""


def unpack(tests: Path, into: Path) -> None:
    """As Debian ships them, the larger files are compressed."""
    into.mkdir()
    for path in tests.iterdir():
        data = path.read_bytes()
        (into / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)


NOT_THERE = {
    "memory windows": r"test_mr\.MWTest\.|test_qp_ex_rc_bind_mw$",
    "registering again": r"test_mr\.MRTest\.test_mr(ex)?_rereg_",
    "on-demand paging": r"test_odp\.",
    "flushing memory": r"test_qp_ex_rc_flush",
    "multicast": r"_multicast_traffic$",
    "resizing": r"test_resize_(cq|srq)$",
}
"""Features that soft-RoCE has and the driver lacks, by the tests of it (docs/driver.md lists the same)."""


def reason(test: str) -> str:
    """Why a test that soft-RoCE passes may be skipped; empty if there is none."""
    return next((what for what, tests in NOT_THERE.items() if re.search(tests, test)), "")


@pytest.mark.parametrize(("series", "programs"), [("6.12", "bookworm"), ("newest", "forky")])
def test_rdma_cores_own_tests(series: str, programs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = VmLab(
        suite=KERNELS[series] or newest_suite(host_release()), programs=programs, packages=[*RDMA, "python3-pyverbs"]
    )
    unpack(lab.tree.root / "usr/share/doc/rdma-core/tests", tmp_path / "tests")
    guest = Guest(
        script=SCRIPT,
        modules=["ib_uverbs", "rdma_ucm", "rdma_rxe", "dummy", lab.build(DRIVER / "kernel", "ferrule_rdma")],
        files={
            "/lab/rdma-core": tmp_path / "tests",
            "/lab/rdma_core_in_guest.py": Path(__file__).parent / "guest" / "rdma_core_in_guest.py",
        },
    )
    files = lab.run(guest, DEADLINE).check().files
    theirs, ours = (json.loads(files[f"{device}.json"]) for device in ("rxe0", "ferrule0"))
    beyond = {test: reason(test) for test in ours if ours[test][0] == "skipped" and theirs[test][0] == "ok"}
    with capsys.disabled():
        for device, ended in (("rxe0", theirs), ("ferrule0", ours)):
            words = Counter(word for word, _ in ended.values())
            print(f"\n{device}, kernel {lab.kernel.release}: {len(ended)} run, {dict(words)}", end="")  # noqa: T201
        print(f"\nskipped on ours only: {dict(Counter(beyond.values()))}")  # noqa: T201
    assert theirs.keys() == ours.keys()
    failed = {test: why for test, (word, why) in ours.items() if word == "failed"}
    assert not failed, files["ferrule0.log"].decode()
    assert sum(word == "ok" for word, _ in ours.values()) > 70
    assert all(beyond.values()), {test: ours[test] for test, why in beyond.items() if not why}
    log = files["dmesg"].decode()
    assert not complaints(log), log
