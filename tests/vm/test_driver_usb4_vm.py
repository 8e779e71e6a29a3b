"""The USB4 verbs driver on stock kernels, two machines, two cables: rails, a pulled cable, soft-RoCE beside it."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor

import pytest
from two_cables import SECONDS, expect_quiet_kernels, joined, measure, sent, wait_for_rails

from ferrule.lab.vm import DEBUG_KERNELS
from ferrule.lab.vm.options import KERNELS

pytestmark = pytest.mark.vm


@pytest.mark.slow
def test_two_machines() -> None:
    with joined("6.12") as lab:
        wait_for_rails(lab, 2)
        measure(lab, "ib_write_lat -s 64 -n 20 -u 18", "ferrule-PEER", 1)
        measure(lab, "ib_send_bw -s 65536 -n 30 -u 18", "ferrule-PEER", 1)
        assert min(sent(lab)) > 100_000
        lab.usb4.unplug("cable0")
        wait_for_rails(lab, 1)
        measure(lab, "ib_read_bw -s 4096 -n 20 -u 18", "ferrule-PEER", 1, "10.77.1.2")
        expect_quiet_kernels(lab)


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
@pytest.mark.parametrize("series", ["6.12", "newest"])
def test_all_programs(series: str) -> None:
    """Small, middle and large messages, one queue pair and eight."""
    with joined(series) as lab:
        wait_for_rails(lab, 2)
        before = sent(lab)
        for kind in ("send", "write", "read"):
            for size, count in ((2, 50), (4096, 50), (1 << 20, 8)):
                measure(lab, f"ib_{kind}_lat -s {size} -n {count} -u 18", "ferrule-PEER", 1)
                for pairs in (1, 8):
                    measure(lab, f"ib_{kind}_bw -s {size} -n {count} -q {pairs} -u 18", "ferrule-PEER", 1)
        assert min(after - earlier for after, earlier in zip(sent(lab), before, strict=True)) > 20_000_000
        expect_quiet_kernels(lab)


@pytest.mark.soak
@pytest.mark.parametrize("series", [*KERNELS, *DEBUG_KERNELS])
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
