"""Two machines with our driver on stock kernels, joined by two cables: for tests of what goes over them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ferrule.hardware import find_lab
from ferrule.lab.vm import DEBUG_KERNELS, NETWORK, RDMA, TOOLS, Guest, JoinedGuests
from ferrule.lab.vm.options import machines_with

SECONDS = 300
"""For what takes ten on a quiet machine."""
DRIVER = Path(__file__).parents[2] / "driver" / "kernel"
RAILS = "cat /sys/kernel/debug/ferrule_rdma/*/rails"

ADDRESS = """
echo 15000 > /sys/module/ferrule_rdma/parameters/dead_ms # guests of a busy machine stand still for seconds
device=$(ls /sys/class/infiniband | grep ferrule)
ip link set frl-${device#ferrule-} up
ip addr replace 10.99.0.${FERRULE_HOST_ID#strix-}/24 dev frl-${device#ferrule-}
cat /sys/class/infiniband/$device/ports/1/state
realpath /sys/class/infiniband/$device/device
"""


@contextmanager
def joined(series: str, *, soft_roce: bool = False, modules: Sequence[str] = (), **more: Any) -> Iterator[JoinedGuests]:
    """``more``: what else the guests have, as `Guest` takes it."""
    machines = machines_with(series, (*TOOLS, *RDMA))
    own = machines.build(DRIVER, "ferrule_rdma")
    template = Guest(
        script="",
        modules=[*NETWORK, *(["rdma_rxe"] if soft_roce else []), "ib_uverbs", *modules, own],
        env={"LAB_RXE": "1"} if soft_roce else {},
        **{"cpus": 1, "memory_mb": 2048 if series in DEBUG_KERNELS else 1024, **more},
    )
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
        assert not lab[host].complaints(SECONDS)


def sent(lab: JoinedGuests) -> list[int]:
    """Bytes that the first host sent, by rail."""
    return [int(number) for number in re.findall(r"tx_bytes (\d+)", lab["strix-1"].check(RAILS, SECONDS))]
