"""Right results, bit for bit the same whatever carries them."""

from __future__ import annotations

import pytest
from ranks import run

TRANSPORTS = ("shm", "tcp")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_equal_numpy_and_agree_over_all_transports(size: int) -> None:
    digests = set()
    for transport in TRANSPORTS if size > 1 else ("auto",):
        reports = run("sweep", size, transport=transport, arguments={"seed": size, "count": 60})
        digests |= {report["digest"] for report in reports}
    assert len(digests) == 1


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), pytest.param(3, "tcp", marks=pytest.mark.slow)])
def test_torch_tensors_of_every_type(size: int, transport: str) -> None:
    pytest.importorskip("torch")
    run("torch_types", size, transport=transport)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (2, "tcp"), (4, "shm"), (3, "tcp")])
def test_messages_keep_their_order_and_are_buffered(size: int, transport: str) -> None:
    run("point_to_point", size, transport=transport)


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (2, "shm"), (4, "auto"), (3, "tcp")])
def test_split(size: int, transport: str) -> None:
    reports = run("splits", size, transport=transport)
    wanted = "self" if size == 1 else {"auto": "shm"}.get(transport, transport)
    assert {report["transports"] for report in reports} == {wanted}
    assert reports[0]["text"].startswith(f"rank 0 of {size}")


@pytest.mark.slow
def test_ranks_on_several_hosts_use_both_transports_at_once() -> None:
    """Two and two ranks share memory (so they are told), and TCP joins the pairs."""
    two_hosts = {"memory_ids": ["a", "b", "a", "b"]}
    reports = run("sweep", 4, arguments={"seed": 4, "count": 60, **two_hosts})
    everywhere_tcp = run("sweep", 4, transport="tcp", arguments={"seed": 4, "count": 60})
    assert {report["digest"] for report in reports} == {report["digest"] for report in everywhere_tcp}
    reports = run("splits", 4, arguments=two_hosts)
    assert {report["transports"] for report in reports} == {"shm+tcp"}
    run("point_to_point", 4, arguments=two_hosts)


def test_no_room_for_shared_memory_falls_back_to_tcp_and_says_so() -> None:
    for report in run("splits", 2, arguments={"no_room": True}):
        assert report["transports"] == "tcp"
        assert "note: no shared memory: there is no room" in report["text"]


def test_wrong_arguments_are_named_and_do_no_harm() -> None:
    pytest.importorskip("torch")
    from ranks import Ranks

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
    with Ranks("arguments_checked", 2) as ranks:
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
