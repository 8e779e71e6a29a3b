"""Runs inside a guest: the fabric's cases over RDMA devices of the kernel's own, and their latency beside TCP's."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, "/tests/fabric")

import ranks

ranks.SECONDS = 200.0
TIMEOUT = 60.0
"""Seconds for an operation; an emulated machine on a busy host is slow."""


def of(case: str, size: int, kind: str, device: str, /, **arguments: Any) -> ranks.Ranks:
    # A busy host may keep the whole guest waiting, but not for so long.
    env = {"FERRULE_VERBS_DEVICES": device, "FERRULE_VERBS_TYPE": kind, "FERRULE_HEARTBEAT": "10s"}
    return ranks.Ranks(case, size, transport="verbs", arguments=arguments, env=env, timeout=TIMEOUT)


def right(case: str, size: int, /, **arguments: Any) -> Callable[[str, str], list[dict[str, Any]]]:
    def check(kind: str, device: str) -> list[dict[str, Any]]:
        with of(case, size, kind, device, **arguments) as running:
            reports = running.reports()
            running.finish()
        assert not any(report.get("error") for report in reports), reports
        return reports

    return check


def mismatch(kind: str, device: str) -> list[dict[str, Any]]:
    with of("mismatch", 2, kind, device, calls=["all_reduce 64", "all_reduce big"]) as running:
        reports = running.reports()
    for report in reports:
        assert report["error"] == "FabricError", reports
        assert "called" in report["text"], reports
    return reports


def killed(kind: str, device: str, size: int = 1000) -> list[dict[str, Any]]:
    with of("lost", 2, kind, device, op="all_reduce", size=size) as running:
        running.reports()
        begin = time.monotonic()
        running.signal(1, signal.SIGKILL)
        report = running.next(0)
    assert (report["error"], report["rank"]) == ("PeerLost", 1), report
    assert report["at"] - begin < 5, report
    return [report]


def departs(kind: str, device: str) -> list[dict[str, Any]]:
    with of("departs", 2, kind, device) as running:
        reports = running.reports()
    assert reports[0]["error"] == "PeerLost", reports
    assert "closed the group" in reports[0]["text"], reports
    return reports


CASES: dict[str, Callable[[str, str], list[dict[str, Any]]]] = {
    "sweep of 2": right("sweep", 2, seed=2, count=15),
    "sweep of 3": right("sweep", 3, seed=3, count=6),
    "messages": right("point_to_point", 2),
    "mismatch": mismatch,
    "killed": killed,
    "killed amid a large message": lambda kind, device: killed(kind, device, 20_000_000),
    "departs": departs,
}


def main() -> None:
    kind, device, *chosen = sys.argv[1:]
    outcome = {}
    for name in chosen or CASES:
        begin = time.monotonic()
        try:
            CASES[name](kind, device)
            outcome[name] = ""
        except AssertionError as error:
            outcome[name] = str(error) or "it failed"
        sys.stdout.write(f"{kind} {device} {name}: {outcome[name] or 'ok'} ({time.monotonic() - begin:.1f} s)\n")
        sys.stdout.flush()
    Path(f"/results/{kind}-{device}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
