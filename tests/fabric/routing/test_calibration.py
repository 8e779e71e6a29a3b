"""Calibration of links: who measures when, the costs of all pairs that follow, and a measurement over a real socket."""

from __future__ import annotations

import itertools
import select
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import FerruleError, RendezvousError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.handshake import Identity, Role, Session
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.algorithms import choose_algorithms
from ferrule.fabric.routing.calibration import Measured, matrix, measure, representatives, schedule, together


def host(memory_id: str, cpus: tuple[int, ...] = (0, 1)) -> RankHost:
    return RankHost(memory_id, memory_id, 1, cpus, "auto")


@given(st.integers(1, 9), st.data())
def test_no_rank_has_two_partners_at_a_time(size: int, data: st.DataObject) -> None:
    every = list(itertools.combinations(range(size), 2))
    pairs = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    rounds = schedule(pairs)
    assert sorted(pair for one in rounds for pair in one) == sorted(pairs)
    for one in rounds:
        ranks = [rank for pair in one for rank in pair]
        assert len(set(ranks)) == len(ranks)
    assert schedule(reversed(pairs)) == rounds


def test_the_links_of_two_hosts_are_measured_once() -> None:
    hosts = [host("a"), host("b"), host("a"), host("b")]
    pairs = [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert set(representatives(hosts, pairs).values()) == {(0, 1)}


def test_rails_add_up() -> None:
    assert together([Measured(1.0, 2.0, 4.0), Measured(0.5, 2.0, 4.0)]) == Measured(0.5, 1.0, 2.0)


def test_costs_of_all_pairs_follow_from_those_that_were_measured() -> None:
    hosts = [host("a"), host("b"), host("a")]
    transports = {(0, 1): None, (1, 2): None, (0, 2): Measured(1e-6, 1e-10, 1e-10)}
    costs = matrix(hosts, transports, {(0, 1): Measured(5.0, up=1.0, down=2.0)})
    assert costs is not None
    assert costs.alpha[0][1] == costs.alpha[1][0] == costs.alpha[2][1] == 5.0
    # From host a to host b it is 1, whichever rank is the higher one.
    assert (costs.beta[0][1], costs.beta[2][1]) == (1.0, 1.0)
    assert (costs.beta[1][0], costs.beta[1][2]) == (2.0, 2.0)
    assert costs.beta[0][0] is None
    assert (costs.alpha[0][2] or 1) < 1e-3


def test_waiting_for_a_core_is_not_taken_for_a_slow_link() -> None:
    hosts = [host("a", (0, 1))] * 8
    pairs = itertools.combinations(range(8), 2)
    costs = matrix(hosts, dict.fromkeys(pairs, None), {(0, 1): Measured(3e-3, up=6e-8, down=6e-8)})
    assert costs is not None
    (small, *_) = choose_algorithms(costs, 8).decisions
    assert (small.op, small.algorithm) == ("all_reduce", "doubling")


def test_without_a_link_there_is_no_cost_and_without_a_measurement_no_matrix() -> None:
    hosts = [host("a", (0,)), host("b"), host("c")]
    costs = matrix(hosts, {(0, 1): None}, {(0, 1): Measured(1.0, 1.0, 1.0)})
    assert costs is not None
    assert not costs.linked(0, 2)
    assert matrix(hosts, {(0, 1): None}, {}) is None


def test_crowding_is_that_of_the_fullest_host() -> None:
    costs = matrix([host("a", (0,)), host("a", (0,)), host("b")], {}, {})
    assert costs is not None
    assert costs.crowding == 2.0


def channels() -> tuple[ControlChannel, ControlChannel]:
    session = Session(Identity(Role.COLLECTIVES, 1, 0, 2), b"key")
    low, high = socket.socketpair()
    return ControlChannel(low, session, server=True), ControlChannel(high, session, server=False)


def test_both_ends_come_to_the_same_numbers() -> None:
    low, high = channels()
    results: dict[str, Measured] = {}
    other = threading.Thread(target=lambda: results.update(low=measure(low, higher=False, deadline=Deadline(30))))
    other.start()
    results["high"] = measure(high, higher=True, deadline=Deadline(30))
    other.join(30)
    assert results["low"] == results["high"]
    for result in results.values():
        assert 0 < result.alpha < 1
        assert 0 < result.up < 1e-3
    assert not select.select([low.socket, high.socket], [], [], 0)[0], "nothing is left on the wire"
    low.socket.close()
    high.socket.close()


def test_two_sockets_are_measured_together_and_count_where_they_are_faster() -> None:
    pairs = [channels(), channels()]
    (low, low2), (high, high2) = zip(*pairs, strict=True)
    results: dict[str, Measured] = {}

    def lower() -> None:
        results["low"] = measure(low, higher=False, deadline=Deadline(30), second=low2)

    other = threading.Thread(target=lower)
    other.start()
    results["high"] = measure(high, higher=True, deadline=Deadline(30), second=high2)
    other.join(30)
    assert results["low"] == results["high"]
    assert results["low"].sockets in (1, 2)  # which, is for the machine to say
    assert 0 < results["low"].up < 1e-3
    ends = [channel.socket for pair in pairs for channel in pair]
    assert not select.select(ends, [], [], 0)[0], "nothing is left on the wires"
    for end in ends:
        end.close()


def test_a_peer_that_leaves_or_says_nothing_is_named() -> None:
    low, high = channels()
    with pytest.raises(FerruleError, match="rank 1"):
        measure(low, higher=False, deadline=Deadline(0.1))
    high.socket.close()
    with pytest.raises(RendezvousError, match="rank 1 left"):
        measure(low, higher=False, deadline=Deadline(5))
    low.socket.close()
