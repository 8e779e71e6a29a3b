"""Shapes of labs: pure."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import ConfigError
from ferrule.hardware import Shaping
from ferrule.lab import CableSpec, Topology, chain, edges, mesh, pair, ring, star, switch


@pytest.mark.parametrize(
    ("topology", "cables", "neighbours_of_1"),
    [
        (mesh(4), 6, (0, 2, 3)),
        (ring(4), 4, (0, 2)),
        (ring(2), 1, (0,)),
        (chain(4), 3, (0, 2)),
        (star(4), 3, (0,)),
        (switch(4), 1, (0, 2, 3)),
        (pair(3), 3, (0,)),
        (edges(4, [(1, 3), (3, 0)]), 2, (3,)),
    ],
)
def test_shapes(topology: Topology, cables: int, neighbours_of_1: tuple[int, ...]) -> None:
    assert len(topology.cables) == cables
    assert topology.neighbours(1) == neighbours_of_1


def test_rates_belong_to_their_cables() -> None:
    two = pair(rates=[1e9, 4e8])
    assert [cable.rate for cable in two.cables] == [1e9, 4e8]
    assert two.between(0, 1) == two.between(1, 0) == (0, 1)
    assert two.between(0, 0) == ()


def test_next_hop_follows_the_shortest_way() -> None:
    assert [chain(5).next_hop(host, 0) for host in range(1, 5)] == [0, 1, 2, 3]
    assert [ring(6).next_hop(host, 0) for host in range(1, 6)] == [0, 1, 2, 5, 0]
    assert [star(4).next_hop(host, 3) for host in range(3)] == [3, 0, 0]
    assert edges(4, [(0, 1), (2, 3)]).next_hop(3, 0) is None


@given(st.integers(2, 9), st.data())
def test_hops_lead_to_the_target(hosts: int, data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(0, hosts - 1), st.integers(0, hosts - 1)).filter(lambda two: two[0] != two[1])
    topology = edges(hosts, data.draw(st.lists(pairs, max_size=12)))
    for start in range(1, hosts):
        host, steps = start, 0
        while host != 0 and (hop := topology.next_hop(host, 0)) is not None:
            assert hop in topology.neighbours(host)
            host, steps = hop, steps + 1
            assert steps < hosts
        assert host == 0 or host == start


def test_a_cable_is_its_numbers_and_its_ends() -> None:
    cable = CableSpec((0, 1), rate=1e9, delay=1e-3, mtu=9000)
    assert cable.shaping == Shaping(rate=1e9, delay=1e-3)
    assert type(cable.shaping) is Shaping
    assert {one.name for one in fields(CableSpec)} == {one.name for one in fields(Shaping)} | {"hosts", "mtu"}
    assert (CableSpec((0, 1), rate=1e9).plain, cable.plain) == (True, False)
    with pytest.raises(ConfigError, match="rate must be more than 0"):
        CableSpec((0, 1), rate=0.0)


@pytest.mark.parametrize(("hosts", "cable"), [(0, None), (2, CableSpec((1, 1))), (2, CableSpec((0, 2)))])
def test_what_cannot_be_wired_is_refused(hosts: int, cable: CableSpec | None) -> None:
    with pytest.raises(ConfigError):
        Topology(hosts, () if cable is None else (cable,))
