"""Several sockets between two ranks: made, described, used, and brought back when one is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ranks import run

from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.routing.paths import Path, Rail
from ferrule.fabric.transports.tcp.rail_repair import RailRepair


def test_a_pair_has_as_many_rails_as_are_asked_for_and_loses_none_for_long() -> None:
    reports = run("rails", 2, transport="tcp", env={"FERRULE_RAILS": "3"})
    for rank, report in enumerate(reports):
        assert report["numbers"] == [0, 1, 2]
        assert report["text"].splitlines()[1].count("127.0.0.1:") == 3
        assert report["text"].count("Gb/s") == 3, "every rail was measured"
        assert report["deaths"] >= (1 if rank == 0 else 0)
        assert report["split"] == [True] * 3


def test_the_only_rail_of_a_pair_is_reset_and_comes_back() -> None:
    for report in run("rails", 2, transport="tcp", arguments={"reset": True}):
        assert len(report["numbers"]) == 1
        assert report["deaths"] >= 1
        assert report["split"] == [True]


def test_ranks_that_share_memory_need_no_rails() -> None:
    for report in run("rails", 2, env={"FERRULE_RAILS": "3"}):
        assert report["text"].count("shared memory") == 1
        assert report["split"] == []


def test_connections_of_the_heartbeat_are_made_anew_only_while_one_is_left() -> None:
    states: list[bool] = []
    mesh: Any = SimpleNamespace(
        rank=1,
        size=2,
        epoch=bytes(16),
        key=b"",
        paths={0: Path((Rail(0, ("", 0)), Rail(1, ("", 0))))},
        heartbeat=SimpleNamespace(peers=lambda: [("alive", 0.0), ("self", 0.0)], rails=lambda peer: states),
        live=list,
        routes={},
        calls=lambda peer, identities: list(identities),
    )
    repair = RailRepair(mesh)
    repair.close()
    states[:] = [True, False]
    assert repair._lost_rails() == [Identity(Role.CONTROL, 1, 0, 2, bytes(16), 1)]
    states[:] = [False, False]
    assert repair._lost_rails() == []
