"""The USB4 verbs driver on stock kernels, two machines, two cables: rails, a pulled cable, soft-RoCE beside it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferrule.lab import find_lab
from ferrule.lab.vm import NETWORK, TOOLS, Guest, JoinedGuests, VmLab, complaints
from ferrule.lab.vm.lab import RDMA
from ferrule.lab.vm.options import KERNELS
from ferrule.lab.vm.sources import host_release, newest_suite

pytestmark = pytest.mark.vm

SECONDS = 300
"""For what takes ten on a quiet machine."""
DRIVER = Path(__file__).parents[2] / "driver" / "kernel"
RAILS = "cat /sys/kernel/debug/ferrule_rdma/*/rails"

ADDRESS = """
device=$(ls /sys/class/infiniband | grep ferrule)
ip link set frl-${device#ferrule-} up
ip addr replace 10.99.0.${FERRULE_HOST_ID#strix-}/24 dev frl-${device#ferrule-}
cat /sys/class/infiniband/$device/ports/1/state
realpath /sys/class/infiniband/$device/device
"""


@contextmanager
def joined(series: str, *, soft_roce: bool = False) -> Iterator[JoinedGuests]:
    machines = VmLab(packages=(*TOOLS, *RDMA), suite=KERNELS[series] or newest_suite(host_release()))
    module = machines.build(DRIVER, "ferrule_rdma")
    modules = [*NETWORK, *(["rdma_rxe"] if soft_roce else []), "ib_uverbs", module]
    env = {"LAB_RXE": "1"} if soft_roce else {}
    template = Guest(script="", modules=modules, env=env, cpus=1, memory_mb=1024)
    with JoinedGuests(find_lab("two-strix"), machines, template) as lab:
        lab.wait_for_cables(SECONDS)
        yield lab


def wait_for_rails(lab: JoinedGuests, count: int) -> None:
    check = f'until [ "$({RAILS} 2> /dev/null | grep -c " up:")" = {count} ]; do sleep 0.2; done'
    lab.everywhere(lambda guest: guest.check(check, SECONDS))
    for host in lab.hosts:
        state, parent = lab[host].check(ADDRESS, SECONDS).splitlines()[-2:]
        assert "ACTIVE" in state
        assert "/pci" in parent


def measure(lab: JoinedGuests, words: str, device: str, gid: int, peer: str = "strix-2") -> list[float]:
    """perftest between the hosts: the numbers of its last line. It may refuse a report where clocks are uneven.
    ``peer``: where its two sides talk before and after."""
    program = f"timeout 200 {words} -F -d {device} -x {gid}"
    here, there = (lab[host].run for host in ("strix-1", "strix-2"))
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(there, program.replace("PEER", "strix-1"), SECONDS)
        lab["strix-2"].check("until grep -q ':4853 .* 0A' /proc/net/tcp; do sleep 0.1; done", SECONDS)
        done = here(f"{program.replace('PEER', 'strix-2')} {peer}", SECONDS)
        server = serving.result()
    assert done.exit_code == 0, done.output + done.errors
    assert server.exit_code == 0, server.output + server.errors
    rows = [line.split() for line in done.output.splitlines() if re.match(r"\s*\d+\s", line)]
    return [float(word) for word in rows[-1]]


def expect_quiet_kernels(lab: JoinedGuests) -> None:
    for host in lab.hosts:
        said = lab[host].check("dmesg", SECONDS)
        assert not complaints(said), said


def sent(lab: JoinedGuests) -> list[int]:
    """Bytes that the first host sent, by rail."""
    return [int(number) for number in re.findall(r"tx_bytes (\d+)", lab["strix-1"].check(RAILS, SECONDS))]


@pytest.mark.soak
def test_two_cables_are_one_device() -> None:
    with joined("6.12") as lab:
        wait_for_rails(lab, 2)
        measure(lab, "ib_write_lat -s 64 -n 20 -u 18", "ferrule-PEER", 1)
        measure(lab, "ib_write_bw -s 65536 -n 60 -u 18", "ferrule-PEER", 1)
        assert min(sent(lab)) > 100_000
        with ThreadPoolExecutor(1) as pool:
            words = "ib_send_bw -s 65536 -n 200 -u 18"
            writing = pool.submit(measure, lab, words, "ferrule-PEER", 1)
            begin = sum(sent(lab))
            while sum(sent(lab)) < begin + 1_000_000 and not writing.done():
                pass
            lab.usb4.unplug("cable1")
            writing.result()
        lab["strix-1"].check("ping -c 1 strix-2", SECONDS)
        lab.usb4.plug("cable1")
        wait_for_rails(lab, 2)
        measure(lab, "ib_read_bw -s 65536 -n 20 -u 18", "ferrule-PEER", 1)
        lab["strix-2"].check("rmmod ferrule_rdma && modprobe ferrule_rdma", SECONDS)
        wait_for_rails(lab, 2)
        expect_quiet_kernels(lab)


@pytest.mark.soak
@pytest.mark.parametrize("series", KERNELS)
def test_cables_come_and_go(series: str) -> None:
    with joined(series) as lab:
        for cycle in range(4):
            wait_for_rails(lab, 2)
            measure(lab, "ib_write_bw -s 65536 -n 20 -u 18", "ferrule-PEER", 1)
            cable = f"cable{cycle % 2}"
            lab.usb4.unplug(cable)
            wait_for_rails(lab, 1)
            over_the_other = f"10.77.{1 - cycle % 2}.2"
            measure(lab, "ib_send_lat -s 64 -n 20 -u 18", "ferrule-PEER", 1, over_the_other)
            lab.usb4.plug(cable)
            lab.wait_for_cables(SECONDS)
        lab.boot("strix-2")
        lab.wait_for_cables(SECONDS)
        wait_for_rails(lab, 2)
        measure(lab, "ib_write_bw -s 65536 -n 20 -u 18", "ferrule-PEER", 1)
        expect_quiet_kernels(lab)


@pytest.mark.soak
def test_beside_soft_roce(capsys: pytest.CaptureFixture[str]) -> None:
    """64 B write latency and 1 MiB write bandwidth of both on the same cable, in turns; medians, best, and ratios."""
    latency: dict[str, list[float]] = {"cable0": [], "ferrule-PEER": []}
    bandwidth: dict[str, list[float]] = {"cable0": [], "ferrule-PEER": []}
    with joined("6.12", soft_roce=True) as lab:
        lab.usb4.unplug("cable1")
        wait_for_rails(lab, 1)
        for _ in range(3):
            for device in latency:
                latency[device].append(measure(lab, "ib_write_lat -s 64 -n 100 -u 18", device, 1)[4])
                bandwidth[device].append(measure(lab, "ib_write_bw -s 1048576 -n 10 -u 18", device, 1)[3])
        expect_quiet_kernels(lab)
    middle = {name: statistics.median(times) for name, times in latency.items()}
    rate = {name: statistics.median(rates) for name, rates in bandwidth.items()}
    with capsys.disabled():
        for name in latency:
            print(f"\n{name}: typical {latency[name]} us, {bandwidth[name]} MB/s", end="")  # noqa: T201
        print(  # noqa: T201
            f"\nlatency, ours/soft-RoCE: median {middle['ferrule-PEER'] / middle['cable0']:.2f}, "
            f"min {min(latency['ferrule-PEER']) / min(latency['cable0']):.2f}; bandwidth: median "
            f"{rate['ferrule-PEER'] / rate['cable0']:.2f}, max "
            f"{max(bandwidth['ferrule-PEER']) / max(bandwidth['cable0']):.2f}"
        )
