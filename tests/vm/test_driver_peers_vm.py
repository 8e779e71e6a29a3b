"""The USB4 verbs driver on two machines: the connection manager between them, and a key that they share, or do not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from two_cables import SECONDS, expect_quiet_kernels, joined, measure, wait_for_rails

from ferrule.lab.vm import JoinedGuests

pytestmark = [pytest.mark.vm, pytest.mark.soak]

SETTLE = 20
"""Seconds in which a link would come up, if it did."""
STATES = "grep -h . /sys/class/infiniband/ferrule-*/ports/1/state 2> /dev/null; true"


def connect(lab: JoinedGuests, server: str, client: str) -> str:
    """Output of ``client`` on the first host, with a ``server`` on the second one that is up sooner or later."""
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(lab["strix-2"].run, f"timeout 200 {server}", SECONDS)
        tries = (
            f"for try in $(seq 100); do timeout 100 {client} > /tmp/said 2>&1 && break; sleep 0.3; done; cat /tmp/said"
        )
        said = lab["strix-1"].check(tries, SECONDS)
        done = serving.result()
    assert done.exit_code == 0, done.output + done.errors + said
    return said


def load(lab: JoinedGuests, host: str, key: str) -> None:
    lab[host].check(f"rmmod ferrule_rdma && modprobe ferrule_rdma {key and f'key={key}'}", SECONDS)


@pytest.mark.parametrize("series", ["6.12", "newest"])
def test_connections_and_keys(series: str) -> None:
    with joined(series, modules=["rdma_ucm"]) as lab:
        wait_for_rails(lab, 2)
        said = connect(lab, "rping -s -C 10 -a 10.99.0.2", "rping -c -v -C 10 -a 10.99.0.2")
        assert said.count("ping data") == 10, said
        said = connect(lab, "ib_send_bw -R -F -s 65536 -n 50", "ib_send_bw -R -F -s 65536 -n 50 10.99.0.2")
        assert "65536" in said, said

        for host in lab.hosts:
            load(lab, host, "amber")
        wait_for_rails(lab, 2)
        measure(lab, "ib_write_bw -s 65536 -n 20 -u 18", "ferrule-PEER", 1)
        for other in ("jade", ""):
            expect_quiet_kernels(lab)
            lab.everywhere(lambda guest: guest.check("dmesg -c > /dev/null", SECONDS))
            load(lab, "strix-2", other)
            for host in lab.hosts:
                lab[host].check("until dmesg | grep 'give both ends the same `key`'; do sleep 0.2; done", SECONDS)
            lab["strix-1"].check(f"sleep {SETTLE}", SECONDS)
            for host in lab.hosts:
                assert "ACTIVE" not in lab[host].check(STATES, SECONDS)
        load(lab, "strix-2", "amber")
        wait_for_rails(lab, 2)
        measure(lab, "ib_write_bw -s 65536 -n 20 -u 18", "ferrule-PEER", 1)
        expect_quiet_kernels(lab)
