"""Right results, bit for bit the same whatever carries them."""

from __future__ import annotations

import pytest
from ranks import Ranks, run, run_all


@pytest.mark.parametrize("size", [1, 2, *(pytest.param(each, marks=pytest.mark.slow) for each in (3, 4))])
def test_results_equal_numpy_and_agree_over_all_transports(size: int) -> None:
    """Collectives of all sizes and types, messages in their order (where there is a peer), and smaller groups."""
    digests = set()
    for transport in ("shm", "tcp") if size > 1 else ("auto",):
        cases = ("sweep", "point_to_point", "splits") if size > 1 else ("sweep", "splits")
        reports, *_, splits = run_all(*cases, size=size, transport=transport, arguments={"seed": size, "count": 60})
        digests |= {report["digest"] for report in reports}
        assert {report["transports"] for report in splits} == {transport if size > 1 else "self"}
        assert splits[0]["text"].startswith(f"rank 0 of {size}")
    assert len(digests) == 1


def test_shared_memory_is_what_one_machine_gets_unasked() -> None:
    assert {report["transports"] for report in run("splits", 4, transport="auto")} == {"shm"}


def test_ranks_know_whether_they_share_cores_also_on_emulated_hosts() -> None:
    """Two ranks that take each other for hosts of their own, on one core and on two."""
    for cpus, crowded in (([0], True), ([0, 1], False)):
        for report in run("splits", 2, arguments={"memory_ids": ["a", "b"], "cpus": cpus}):
            assert report["transports"] == "tcp"
            assert ("more ranks than cores on this machine" in report["text"]) is crowded


@pytest.mark.slow
def test_torch_tensors_of_every_type_over_tcp() -> None:
    pytest.importorskip("torch")
    run("torch_types", 3, transport="tcp")


@pytest.mark.slow
def test_ranks_on_several_hosts_use_both_transports_at_once() -> None:
    """Two and two ranks share memory (so they are told), and TCP joins the pairs."""
    two_hosts = {"memory_ids": ["a", "b", "a", "b"]}
    arguments = {"seed": 4, "count": 60, **two_hosts}
    reports, splits, _ = run_all("sweep", "splits", "point_to_point", size=4, arguments=arguments)
    everywhere_tcp = run("sweep", 4, transport="tcp", arguments={"seed": 4, "count": 60})
    assert {report["digest"] for report in reports} == {report["digest"] for report in everywhere_tcp}
    assert {report["transports"] for report in splits} == {"shm+tcp"}


def test_no_room_for_shared_memory_falls_back_to_tcp_and_says_so() -> None:
    for report in run("splits", 2, arguments={"no_room": True}):
        assert report["transports"] == "tcp"
        assert "note: no shared memory: there is no room" in report["text"]


def test_torch_tensors_of_every_type_and_wrong_arguments() -> None:
    """Those are named and do no harm. Together, since importing torch is most of it."""
    pytest.importorskip("torch")

    wanted = [
        ("ValueError", "not contiguous"),
        ("ValueError", "not contiguous"),
        ("ValueError", "read-only"),
        ("TypeError", "list is no array"),
        ("TypeError", "complex64"),
        ("TypeError", "complex64"),
        ("TypeError", "on meta"),
        ("TypeError", ">f4"),
        ("ValueError", "median"),
        ("TypeError", "avg of bool"),
        ("ValueError", "no rank 2"),
        ("ValueError", "itself"),
        ("ValueError", "does not divide"),
        ("ValueError", "out has 7 elements"),
        ("TypeError", "another element type"),
    ]
    with Ranks("torch_types+arguments_checked", 2, transport="shm") as ranks:
        ranks.reports()
        for error, text in wanted:
            for report in ranks.reports():
                assert report["error"] == error
                assert text in report["text"]
        ranks.finish()


@pytest.mark.soak
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_more_bytes_than_32_bits_can_count(transport: str) -> None:
    """Needs about 10 GiB of memory."""
    run("huge", 2, transport=transport, arguments={"size": (4 << 30) + 12_345}, timeout=200)
