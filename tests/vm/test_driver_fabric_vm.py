"""Groups of two machines over the USB4 verbs driver, two cables: right data, a pulled cable, a rank or a host lost."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from two_cables import SECONDS, expect_quiet_kernels, joined, sent, wait_for_rails

from ferrule.lab.vm import JoinedGuests

pytestmark = [pytest.mark.vm, pytest.mark.soak]

HERE = Path(__file__).parent
SILENCE = 10
"""Seconds after which a silent rank is lost: a busy host keeps guests waiting."""
LOOSE = 10
"""Seconds that a slow machine may take to say so."""
DROWSY = 20
"""Seconds after which a controller without a cable would be asleep."""
KEY = secrets.token_hex(32)
RANKS = ("strix-1", "strix-2")
STATE = "dmesg | tail -n 30; grep -H . /sys/kernel/debug/ferrule_rdma/*/{rails,stats,qps}; true"
PROGRESS = "cat /tmp/progress 2> /dev/null || echo 0"


class Job:
    """A rank on each host, which run ``case``; `results` waits for what they print."""

    def __init__(self, lab: JoinedGuests, pool: ThreadPoolExecutor, case: str, kind: str) -> None:
        self.lab = lab
        lab.everywhere(lambda guest: guest.check("rm -f /tmp/enough /tmp/progress /tmp/rank", SECONDS))
        self.running = [pool.submit(self._run, rank, case, kind) for rank in range(len(RANKS))]

    def _run(self, rank: int, case: str, kind: str) -> dict[str, Any]:
        env = {
            "FERRULE_RANK": rank,
            "FERRULE_WORLD_SIZE": len(RANKS),
            "FERRULE_ADDRESS": "10.77.0.1:29500",
            "FERRULE_KEY": KEY,
            "FERRULE_TRANSPORT": "verbs",
            "FERRULE_VERBS_TYPE": kind,
            "FERRULE_VERBS_DEVICES": f"ferrule-{RANKS[1 - rank]}",
            "FERRULE_HEARTBEAT": f"{SILENCE}s",
            "FERRULE_TIMEOUT": f"{SECONDS}s",
        }
        words = " ".join(f"{name}={value}" for name, value in env.items())
        done = self.lab[RANKS[rank]].run(f"{words} python3 /lab/fabric_in_guest.py {case}", 2 * SECONDS)
        assert done.exit_code == 0, done.output + done.errors + self.lab[RANKS[rank]].check(STATE, SECONDS)
        found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
        return found

    def results(self) -> list[dict[str, Any]]:
        found = [future.result() for future in self.running]
        for rank, result in enumerate(found):
            self.expect_verbs(result, rank)
        return found

    @staticmethod
    def expect_verbs(result: dict[str, Any], rank: int) -> None:
        assert result["transports"] == "verbs", result
        assert f"ferrule-{RANKS[1 - rank]} 10.99.0.{rank + 1}" in result["path"], result
        assert not result["notes"], result

    def go_on(self, more: int = 10) -> None:
        """Wait until both ranks have done so many more reductions."""
        goal = [done + more for done in self.progress()]
        deadline = time.monotonic() + SECONDS
        while any(done < wanted for done, wanted in zip(self.progress(), goal, strict=True)):
            assert not any(future.done() for future in self.running), [future.result() for future in self.running]
            assert time.monotonic() < deadline, (self.progress(), goal)
            time.sleep(0.5)

    def progress(self) -> list[int]:
        return [int(text) for text in self.lab.everywhere(lambda guest: guest.check(PROGRESS, SECONDS))]


@contextmanager
def two_hosts(series: str) -> Iterator[tuple[JoinedGuests, ThreadPoolExecutor]]:
    files: dict[str, str | Path] = {
        "/tests/fabric": HERE.parent / "fabric",
        "/lab/fabric_in_guest.py": HERE / "guest" / "fabric_in_guest.py",
    }
    with joined(series, python=["numpy", "ferrule", "psutil"], files=files, memory_mb=1536) as lab:
        wait_for_rails(lab, 2)
        with ThreadPoolExecutor(2) as pool:
            yield lab, pool


@pytest.mark.parametrize("series", ["6.12", "newest"])
def test_collectives_over_two_cables(series: str) -> None:
    with two_hosts(series) as (lab, pool):
        for kind in ("RC", "UC"):
            before = sent(lab)
            found = Job(lab, pool, "sizes", kind).results()
            assert found[0]["calls"] > 100
            assert all(f"verbs {kind}" in result["path"] for result in found), found
            bytes_by_rail = [after - earlier for after, earlier in zip(sent(lab), before, strict=True)]
            assert len(bytes_by_rail) == 2
            assert min(bytes_by_rail) > 5_000_000, bytes_by_rail
        for kind, cable in (("RC", "cable1"), ("UC", "cable0")):
            job = Job(lab, pool, "stream", kind)
            job.go_on()
            lab.usb4.unplug(cable)
            wait_for_rails(lab, 1)
            lab["strix-1"].check(f"sleep {DROWSY}", SECONDS)
            job.go_on()
            lab.usb4.plug(cable)
            wait_for_rails(lab, 2)
            job.go_on()
            lab["strix-1"].check("touch /tmp/enough", SECONDS)
            found = job.results()
            assert not [result for result in found if "error" in result], found
            assert found[0]["done"] == found[1]["done"] > 30
        lab.wait_for_cables(SECONDS)
        expect_quiet_kernels(lab)


@pytest.mark.parametrize("series", ["6.12", "newest"])
def test_rank_and_host_are_lost(series: str) -> None:
    with two_hosts(series) as (lab, pool):
        for kind, end in (("RC", "kill"), ("UC", "kill"), ("RC", "power")):
            job = Job(lab, pool, "stream", kind)
            job.go_on()
            if end == "kill":
                lab["strix-2"].check("kill -9 $(cat /tmp/rank)", SECONDS)
            else:
                lab["strix-2"].close()
            assert job.running[1].exception() is not None
            left = job.running[0].result()
            Job.expect_verbs(left, 0)
            assert left["error"] == "PeerLost", left
            assert left["took"] < (LOOSE if end == "kill" else SILENCE + LOOSE), left
        lab.boot("strix-2")
        lab.wait_for_cables(SECONDS)
        wait_for_rails(lab, 2)
        assert Job(lab, pool, "sizes", "RC").results()[0]["calls"] > 100
        expect_quiet_kernels(lab)
