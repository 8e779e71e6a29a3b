"""A hundred times a cable is pulled out, a lane lost, or the peer reboots: what stock drivers show, and their log.

Two of three cables change at once while the third one stays, so that a hundred take twenty minutes and not forty.
"""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ferrule.errors import GuestError
from ferrule.hardware import find_lab
from ferrule.lab.usb4 import Fault, FaultKind
from ferrule.lab.vm import DEBUG_KERNELS, NETWORK, Guest, JoinedGuests, complaints
from ferrule.lab.vm.options import KERNELS, machines_with

pytestmark = [pytest.mark.soak, pytest.mark.vm]

SECONDS = 600
"""For what takes ten on a quiet machine, half a minute with a debug kernel."""
BONDING_SECONDS, TRIES = 60, 5
PATIENCE = dict.fromkeys([*KERNELS, *DEBUG_KERNELS], 45) | dict.fromkeys(DEBUG_KERNELS, 180)
"""Seconds until a cable is put in once more."""
CYCLES = dict.fromkeys([*KERNELS, *DEBUG_KERNELS], 100) | {"debug-kcsan": 20}
CABLES = """
[lab.three-cables]
title = "Two cables at the first controllers of two hosts, one at the second"
hosts = [{ name = "strix", machine = "strix-halo", count = 2 }]
cables = [{ cable = "usb4-40g", between = ["strix-1", "strix-2"], count = 3 }]
"""
BOTH_LANES, ONE_LANE, TRAINED, NOTHING = "2 20.0 2 20.0", "1 20.0 1 20.0", "[12] 20.0 [12] 20.0", "-"
"""Lanes and speed, received and sent, as bash compares them."""
WAIT = r"""
exec {quiet}<> <(:)
show() { # without a new process, which takes long in a kernel that checks itself
    shown=
    while read -r slot route cable _; do
        peers=(/sys/bus/pci/devices/$slot/domain*/*-0/*-$route)
        nets=(${peers[0]}/*.*/net/*)
        if [ -e "${nets[0]}" ] && read -r rx < ${peers[0]}/rx_lanes && read -r rate _ < ${peers[0]}/rx_speed &&
            read -r tx < ${peers[0]}/tx_lanes && read -r back _ < ${peers[0]}/tx_speed; then
            shown+="$cable $rx $rate $tx $back"
        else
            [ -e "${peers[0]}" ] && shown+="$cable found" || shown+="$cable -"
        fi
        shown+=$'\n'
    done < /lab/cables 2> /dev/null
}
until show; [[ $shown == $WANTED ]]; do
    [ $SECONDS -lt $DEADLINE ] || break
    read -r -t 0.3 -u $quiet
done
echo -n "$shown"
"""


SLEEPS = """
set -e
slot=$(grep " cable1 " /lab/cables | cut -d " " -f 1)
echo 100 > /sys/bus/pci/devices/$slot/power/autosuspend_delay_ms
until grep -q suspended /sys/bus/pci/devices/$slot/power/runtime_status; do sleep 0.2; [ $SECONDS -lt 300 ]; done
"""


class Cycles:
    """A lab and what its hosts should show now, by cable.

    Stock drivers give their peer about a second to agree on bonding, and go on with one lane if it takes longer; and
    one that reads what its peer offers at the wrong moment does not hear that this has changed. Both happen when the
    machine has much other work. Such a cable is pulled out and put in once more; ``again`` counts them.
    """

    def __init__(self, lab: JoinedGuests, patience: int) -> None:
        self.lab, self.patience = lab, patience
        self.again = self.done = 0
        self.expected: dict[str, str] = {}

    def run(self, count: int) -> None:
        names = [cable.name for cable in self.lab.wiring.cables]
        self.train(*names)
        for turn in itertools.count():
            if self.done >= count:
                break
            one, another = names[turn % len(names)], names[(turn + 1) % len(names)]
            if turn % 5 == 4:
                self.reboot("strix-2")
                self.lab.wait_for_cables(SECONDS)
            elif turn % 5 in (1, 3):
                self.disturb(pulled=[one], lame=[another])
            else:
                self.disturb(pulled=[one, another])

    def disturb(self, pulled: Sequence[str], lame: Sequence[str] = ()) -> None:
        """Cables that are pulled out and put in again, and such that lose a lane and get it back."""
        for cable in pulled:
            self.lab.usb4.unplug(cable)
        for cable in lame:
            self.lab.usb4.fault(cable, Fault(FaultKind.HALF_LANE))
        self.expect(dict.fromkeys(pulled, NOTHING) | dict.fromkeys(lame, ONE_LANE))
        for cable in pulled:
            self.lab.usb4.plug(cable)
        for cable in lame:
            self.lab.usb4.heal(cable)
            deadline = time.monotonic() + BONDING_SECONDS
            while self.lab.usb4.state().cables[cable].lanes != 2 and time.monotonic() < deadline:
                time.sleep(0.3)  # the link comes back sooner than a busy guest notices that it was gone
        self.train(*pulled, *lame)
        self.done += len(pulled) + len(lame)

    def reboot(self, host: str) -> None:
        """As a power cut does it."""
        log = self.lab[host].check("dmesg", SECONDS)
        assert not complaints(log), log
        self.lab[host].close()
        others = [name for name in self.lab.hosts if name != host]
        self.expect(dict.fromkeys(self.expected, NOTHING), others)
        self.lab.boot(host)
        self.train(*self.expected)
        self.done += 1

    def train(self, *cables: str) -> None:
        """Wait for them until they have both lanes and an interface."""
        for _ in range(TRIES):
            shown = self.look(dict.fromkeys(cables, TRAINED), self.patience)
            lame = [cable for cable in cables if any(f"{cable} {BOTH_LANES}\n" not in one for one in shown)]
            self.expected |= dict.fromkeys(cables, BOTH_LANES)
            if not lame:
                return
            self.again += len(lame)
            for cable in lame:
                self.lab.usb4.unplug(cable)
            self.expect(dict.fromkeys(lame, NOTHING))
            for cable in lame:
                self.lab.usb4.plug(cable)
        raise GuestError(f"{', '.join(cables)}: no link with both lanes in {TRIES} tries")

    def expect(self, changed: dict[str, str], hosts: Sequence[str] = ()) -> None:
        """Wait until these hosts, or all, show this, and the other cables as before."""
        for host, shown in zip(hosts or self.lab.hosts, self.look(changed, SECONDS, hosts), strict=True):
            if shown != (wanted := self._wanted()):
                log = self.lab[host].check("dmesg | tail -30", SECONDS)
                raise GuestError(f"{host} should show\n{wanted}after {SECONDS} s, but shows\n{shown}\n{log}")

    def look(self, changed: dict[str, str], seconds: int, hosts: Sequence[str] = ()) -> list[str]:
        """Cables that these hosts, or all, show: once they are as expected, or after so many seconds."""
        self.expected |= changed
        script = f"WANTED={shlex.quote(self._wanted())} DEADLINE={seconds}\n{WAIT}"
        with ThreadPoolExecutor() as pool:
            looking = [pool.submit(self.lab[host].check, script, seconds + SECONDS) for host in hosts or self.lab.hosts]
            return [each.result() for each in looking]

    def _wanted(self) -> str:
        return "".join(f"{cable} {what}\n" for cable, what in sorted(self.expected.items()))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cable_wakes_a_controller_that_sleeps(kernel: str) -> None:
    """Drivers switch a controller off that has had no cable for 15 s, or for as long as they are told."""
    template = Guest(script="", modules=NETWORK, cpus=1, memory_mb=1024)
    with JoinedGuests(find_lab("two-strix"), machines_with(kernel), template) as lab:
        lab.wait_for_cables(SECONDS)
        lab.usb4.unplug("cable1")
        for host in lab.hosts:
            lab[host].check(SLEEPS, SECONDS)
        time.sleep(8)  # longer than events are repeated to a controller that is awake
        lab.usb4.plug("cable1")
        lab.wait_for_cables(SECONDS)
        for host in lab.hosts:
            assert not lab[host].complaints(SECONDS)


@pytest.mark.parametrize("kernel", CYCLES)
def test_cables_come_and_go(kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "cables.toml"
    profile.write_text(CABLES)
    template = Guest(script="", modules=NETWORK, cpus=1, memory_mb=1024)
    with JoinedGuests(find_lab(str(profile)), machines_with(kernel), template) as lab:
        cycles = Cycles(lab, PATIENCE[kernel])
        cycles.run(CYCLES[kernel])
        lab.wait_for_cables(SECONDS)
        for host in lab.hosts:
            log = lab[host].check("lab-kernel-log", SECONDS)
            assert not complaints(log), log
            found, lost = (log.count(words) for words in (": new host found", ": host disconnected"))
            assert found - lost == len(lab.wiring.cables), log
    with capsys.disabled():
        print(f"\n{kernel}: {cycles.done} times, no complaint; {cycles.again} cables put in once more")  # noqa: T201
