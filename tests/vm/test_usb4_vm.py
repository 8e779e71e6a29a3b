"""Stock kernels on emulated USB4: hosts reach each other, and the doctor sees in a real sysfs what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule.hardware import find_lab
from ferrule.lab.usb4 import Fault, FaultKind
from ferrule.lab.vm import NETWORK, Guest, JoinedGuests, VmLab
from ferrule.lab.vm.faults import apply_fault
from ferrule.lab.vm.options import KERNELS

pytestmark = pytest.mark.vm

SECONDS = 240
"""For what takes ten on a quiet machine."""
DOCTOR = Path(__file__).parent / "guest" / "doctor_in_guest.py"
LISTEN = "mkfifo /tmp/never; timeout 200 nc -l -p 9000 <> /tmp/never > /tmp/came 2> /dev/null &"
SEND = """
head -c 4000000 /dev/urandom > /tmp/sent
until nc strix-2 9000 < /tmp/sent 2> /dev/null; do sleep 0.2; done
sha256sum < /tmp/sent
"""
BAD_LINK = {"cable-half-speed", "cable-one-lane", "thunderbolt-net-missing", "peer-offers-no-network"}


def doctor(lab: JoinedGuests, host: str = "strix-1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab[host].check("python3 /lab/doctor.py", SECONDS))
    found["links"] = {(one, subject) for one, _, subject in found["findings"] if one in BAD_LINK}
    return found


def expect_quiet_kernels(lab: JoinedGuests) -> None:
    for host in lab.hosts:
        assert not lab[host].complaints(SECONDS)


@pytest.mark.slow
def test_doctor_and_tcp_on_stock_kernels(vm_lab: VmLab) -> None:
    """Two cables, one of which trained at half speed; then one pulled out, one lane lost, and a module missing."""
    template = Guest(
        script="",
        modules=NETWORK,
        python=["numpy", "ferrule"],
        files={"/lab/doctor.py": DOCTOR},
        cpus=1,
        memory_mb=1024,
    )
    with JoinedGuests(find_lab("half-trained"), vm_lab, template) as lab:
        lab.wait_for_cables(SECONDS)
        found = doctor(lab)
        assert [(peer["lanes"], peer["gbps"], len(peer["netdevs"])) for peer in found["peers"]] == [
            ([2, 2], [20, 20], 1),
            ([2, 2], [10, 10], 1),
        ]
        assert {peer["device"] for peer in found["peers"]} == {"strix-2"}
        assert {one for one, _ in found["links"]} == {"cable-half-speed"}

        lab["strix-2"].check(LISTEN, SECONDS)
        sent = lab["strix-1"].check(SEND, SECONDS)
        assert lab["strix-2"].check("sha256sum < /tmp/came", SECONDS) == sent

        for words, sender in (("stall-tx", "strix-1"), ("stall-rx", "strix-2"), ("lose-interrupts", "strix-2")):
            apply_fault(lab, "cable0", [words], sender)
            assert lab["strix-1"].run("ping -c 2 -i 0.2 -W 2 10.77.0.2", SECONDS).exit_code == 1, words
            apply_fault(lab, "cable0", ["clear"])
            lab.wait_for_cables(SECONDS, "cable0")
        apply_fault(lab, "cable0", ["lose-interrupts=20%"])
        lab["strix-1"].check("until ping -c 1 -W 1 10.77.0.2; do sleep 0.2; done", SECONDS)
        apply_fault(lab, "cable0", ["clear"])

        lab.usb4.unplug("cable1")
        lab.usb4.wait_link("cable1", "down", SECONDS)
        lab.usb4.fault("cable0", Fault(FaultKind.HALF_LANE))
        lab["strix-1"].check(
            "until [ $(cat /sys/bus/thunderbolt/devices/?-1/rx_lanes) = 1 ]; do sleep 0.2; done", SECONDS
        )
        lab.wait_for_cables(SECONDS, "cable0")
        found = doctor(lab)
        assert [peer["lanes"] for peer in found["peers"]] == [[1, 1]]
        assert {one for one, _ in found["links"]} == {"cable-one-lane"}

        lab["strix-1"].check("rmmod thunderbolt_net", SECONDS)
        assert {one for one, _ in doctor(lab)["links"]} == {"cable-one-lane", "thunderbolt-net-missing"}
        expect_quiet_kernels(lab)


@pytest.mark.soak
@pytest.mark.parametrize("series", KERNELS)
def test_command_measures_tcp(series: str) -> None:
    command = [sys.executable, "-m", "ferrule.cli.main", "lab", "vm", "run", "two-strix", "--kernel", series]
    done = subprocess.run([*command, "--", "iperf3"], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "receiver" in done.stdout
