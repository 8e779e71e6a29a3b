"""Several sockets between two ranks: made, described, used, and brought back when one is lost."""

from __future__ import annotations

from ranks import run


def test_a_pair_has_as_many_rails_as_are_asked_for_and_loses_none_for_long() -> None:
    reports = run("rails", 2, transport="tcp", env={"FERRULE_RAILS": "3"})
    for rank, report in enumerate(reports):
        assert report["numbers"] == [0, 1, 2]
        assert report["text"].splitlines()[1].count("127.0.0.1:") == 3
        assert report["text"].count("Gb/s") == 3, "every rail was measured"
        assert report["deaths"] >= (1 if rank == 0 else 0)
        assert report["split"] == [True] * 3


def test_ranks_that_share_memory_need_no_rails() -> None:
    for report in run("rails", 2, env={"FERRULE_RAILS": "3"}):
        assert report["text"].count("shared memory") == 1
        assert report["split"] == []
