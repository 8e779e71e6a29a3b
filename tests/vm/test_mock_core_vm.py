"""The mock thunderbolt.ko under the distribution's own thunderbolt_net.ko."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.lab.vm import DEBUG_KERNELS, Guest, VmLab, complaints
from ferrule.lab.vm.options import KERNELS, machines_with

pytestmark = pytest.mark.vm

DEADLINE = 300
HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "driver" / "testing" / "mock_tb"


def guest(lab: VmLab, script: str, **more: object) -> Guest:
    mock = lab.build(SOURCE, "thunderbolt", stands_in=True)
    return Guest(script=script, modules=[mock, "thunderbolt_net"], memory_mb=1024, **more)  # type: ignore[arg-type]


def carries_a_network(lab: VmLab) -> None:
    files = lab.run(guest(lab, (HERE / "guest" / "mock_core.sh").read_text()), DEADLINE).check().files
    assert (files["lanes"], files["half"]) == (b"2\n", b"1\n")
    assert int(files["fast"]) + 35_000 < int(files["slow"]) < int(files["fast"]) + 200_000
    assert int(files["dropped"]) > 0
    assert files["unplugged"] == b""
    assert files["left"] == b"0\n"
    assert not complaints(files["dmesg"].decode()), files["dmesg"].decode()


@pytest.mark.slow
def test_stock_network_driver_takes_the_mock_core(vm_lab: VmLab) -> None:
    carries_a_network(vm_lab)


@pytest.mark.soak
@pytest.mark.parametrize("kernel", [*KERNELS, *DEBUG_KERNELS])
def test_on_every_kernel(kernel: str) -> None:
    carries_a_network(machines_with(kernel))


@pytest.mark.soak
def test_exact_time_is_the_same_each_time(vm_lab: VmLab) -> None:
    script = """
        set -e
        ip netns add host1
        for side in 0 1; do
            [ $side = 0 ] || place=host1
            ip link set thunderbolt$side ${place:+netns $place}
            ip ${place:+-n $place} addr add 10.9.0.$((side + 1))/24 dev thunderbolt$side
            ip ${place:+-n $place} link set thunderbolt$side up
        done
        until ping -c 1 -W 1 10.9.0.2 > /dev/null; do sleep 0.1; done
        echo 1000 > /sys/module/thunderbolt/parameters/delay_us
        ping -c 10 -i 0.2 10.9.0.2 | tail -1 | cut -d = -f 2 > /results/times
    """
    runs = [vm_lab.run(guest(vm_lab, script, cpus=1, exact_time=True), DEADLINE).check() for _ in range(3)]
    means = [float(run.files["times"].decode().split("/")[1]) for run in runs]
    assert max(means) <= 1.01 * min(means), means
