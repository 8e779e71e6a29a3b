"""Nothing hangs: whatever a peer does, every rank learns of it in time and by name."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from ranks import Ranks, run

NOTICED_SECONDS = 1.0
"""The machine may be busy with other things; on a quiet one a loss is seen within a millisecond or two."""

SILENCE_SECONDS = 2.0
"""0.8 s by default, and what a busy machine adds."""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "calls",
    [
        ("all_reduce 64", "all_reduce 128"),
        ("all_reduce 64", "all_reduce int"),
        ("all_reduce 64", "all_reduce max"),
        ("all_reduce 64", "all_reduce big"),
        ("all_reduce 64", "all_gather"),
        ("broadcast from 0", "all_reduce 64"),
        ("send 4", "recv 8"),
    ],
    ids=" with ".join,
)
def test_different_calls_are_named(transport: str, calls: tuple[str, str]) -> None:
    with Ranks("mismatch", 2, transport=transport, arguments={"calls": calls}, timeout=10) as ranks:
        first, second = ranks.reports(), ranks.reports()
        ranks.finish()
    # A send or broadcast is over once it is buffered: then the sender learns of it in its next call.
    names = [{"send": "send/recv", "recv": "send/recv"}.get(call.split()[0], call.split()[0]) for call in calls]
    for report, later in zip(first, second, strict=True):
        told = report if report["error"] else later
        assert told["error"] == "FabricError", told
        assert "called" in told["text"]
        assert any(name in told["text"] for name in names), told
        assert told["took"] < 5


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_deadline(transport: str) -> None:
    reports = run("deadline", 2, transport=transport)
    assert "FabricTimeout" in {report["error"] for report in reports}
    for report in reports:
        assert "#1 was not done after 0.3" in report["text"]
        assert "waiting for rank" in report["text"]
        assert 0.1 < report["took"] < 5


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("size", "op"), [(2, "all_reduce"), (3, "all_reduce"), (3, "recv")])
def test_killed_peer_is_noticed_by_all_and_named(transport: str, size: int, op: str) -> None:
    with Ranks("lost", size, transport=transport, arguments={"op": op}) as ranks:
        ranks.reports()
        for rank in range(size - 1):
            ranks.until_asleep(rank)
        killed = ranks.signal(size - 1, signal.SIGKILL)
        for rank in range(size - 1):
            report = ranks.next(rank)
            assert report["error"] == "PeerLost", report
            assert report["rank"] == size - 1
            assert report["at"] - killed < NOTICED_SECONDS
            again = ranks.next(rank)
            assert (again["error"], again["text"]) == ("PeerLost", report["text"])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_peer_killed_in_the_middle_of_a_large_message(transport: str) -> None:
    with Ranks("lost", 2, transport=transport, arguments={"op": "all_reduce", "size": 20_000_000}) as ranks:
        ranks.reports()
        killed = ranks.signal(1, signal.SIGKILL)
        report = ranks.next(0)
        assert report["error"] == "PeerLost"
        assert report["at"] - killed < NOTICED_SECONDS


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("size", "culprit"), [(2, 0), pytest.param(3, 1, marks=pytest.mark.slow)])
def test_stopped_peer_is_noticed_by_idle_ranks_and_named(transport: str, size: int, culprit: int) -> None:
    with Ranks("idle", size, transport=transport) as ranks:
        ranks.reports()
        stopped = ranks.signal(culprit, signal.SIGSTOP)
        for rank in {*range(size)} - {culprit}:
            report, again = ranks.next(rank), ranks.next(rank)
            assert (report["error"], report["rank"]) == ("PeerLost", culprit), report
            assert "no heartbeat for" in report["text"]
            assert report["at"] - stopped < SILENCE_SECONDS
            assert again["text"] == report["text"]
        ranks.signal(culprit, signal.SIGCONT)
        report = ranks.next(culprit)
        assert report["text"].startswith("the other ranks gave this one up"), report
        assert "this process was stopped" in report["text"]


def test_killed_peer_is_noticed_by_idle_ranks_although_silence_is_no_fault() -> None:
    with Ranks("idle", 3, transport="tcp", env={"FERRULE_HEARTBEAT": "0"}) as ranks:
        ranks.reports()
        ranks.signal(1, signal.SIGSTOP)
        killed = ranks.signal(2, signal.SIGKILL)
        report = ranks.next(0)
        assert (report["error"], report["rank"]) == ("PeerLost", 2), report
        assert report["at"] - killed < NOTICED_SECONDS


def test_busy_peer_is_not_lost() -> None:
    """It neither answers nor reads for longer than any silence lasts, but its heart beats."""
    run("busy", 2, env={"FERRULE_HEARTBEAT": "300ms"})


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a segment has a name until all have opened it")
def test_shared_memory_has_no_name_that_could_be_left_behind() -> None:
    with Ranks("lost", 2, transport="shm", arguments={"op": "all_reduce"}) as ranks:
        ranks.reports()
        for pid in ranks.launcher.pids:
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "/memfd:ferrule (deleted)" in maps
            assert "/dev/shm" not in maps
            assert not [one for one in Path(f"/proc/{pid}/fd").iterdir() if "memfd:ferrule" in str(one.readlink())]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ctrl_c_ends_a_wait_and_the_peer_learns_why(transport: str) -> None:
    with Ranks("interrupted", 2, transport=transport) as ranks:
        ranks.reports()
        ranks.until_asleep(0)
        sent = ranks.signal(0, signal.SIGINT)
        report, other = ranks.next(0), ranks.next(1)
    assert report["error"] == "KeyboardInterrupt"
    assert report["at"] - sent < NOTICED_SECONDS
    assert other["error"] == "FabricError"
    assert "rank 0 gave up: interrupted" in other["text"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_was_sent_before_an_orderly_close_still_arrives(transport: str) -> None:
    reports = run("departs", 2, transport=transport)
    assert reports[0]["error"] == "PeerLost"
    assert reports[0]["text"].startswith("rank 1 on ")
    assert "closed the group" in reports[0]["text"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_second_thread_is_refused_and_abort_ends_a_wait(transport: str) -> None:
    reports = run("threads", 2, transport=transport)
    assert "one thread at a time" in reports[0]["busy"]
    assert len(reports[0]["outcome"]) == 1
    assert "enough" in reports[0]["outcome"][0]
    assert reports[1]["error"] in ("FabricError", "PeerLost")
