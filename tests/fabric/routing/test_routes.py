"""Routes between ranks that share no link: every graph that is in one piece has routes, and cheap ones."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ferrule.fabric.routing.costs import PairCosts
from ferrule.fabric.routing.routes import Pair, find_routes


def hosts(size: int) -> list[str]:
    return [f"host{rank}" for rank in range(size)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Pair]]:
    size = draw(st.integers(1, 9))
    pairs = list(itertools.combinations(range(size), 2))
    return size, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


def distances(size: int, linked: list[Pair], source: int) -> dict[int, int]:
    found, frontier = {source: 0}, [source]
    while frontier:
        here = frontier.pop(0)
        for pair in linked:
            if here in pair:
                other = sum(pair) - here
                if other not in found:
                    found[other] = found[here] + 1
                    frontier.append(other)
    return found


@given(graphs())
def test_every_pair_that_links_join_has_a_shortest_route_and_no_other_has_one(graph: tuple[int, list[Pair]]) -> None:
    size, linked = graph
    routes = find_routes(linked, hosts(size))
    joined = {
        (high, low)
        for low in range(size)
        for high, hops in distances(size, linked, low).items()
        if high > low and hops > 1
    }
    assert routes.keys() == joined
    for (high, low), between in routes.items():
        steps = list(itertools.pairwise((high, *between, low)))
        assert all(tuple(sorted(step)) in linked for step in steps)
        assert len(steps) == distances(size, linked, low)[high]


@given(graphs(), st.randoms(use_true_random=False))
def test_with_costs_every_pair_still_has_a_route_over_links(
    graph: tuple[int, list[Pair]], random: st.random.Random
) -> None:
    size, linked = graph
    cells: list[list[float | None]] = [[None] * size for _ in range(size)]
    for low, high in linked:
        cells[low][high], cells[high][low] = random.uniform(1e-6, 1e-3), random.uniform(1e-6, 1e-3)
    matrix = tuple(map(tuple, cells))
    routes = find_routes(linked, hosts(size), PairCosts(matrix, matrix))
    assert routes.keys() == find_routes(linked, hosts(size)).keys()
    for (high, low), between in routes.items():
        path = (high, *between, low)
        assert len(set(path)) == len(path)
        assert all(tuple(sorted(step)) in linked for step in itertools.pairwise(path))


def test_ties_go_to_the_lowest_ranks() -> None:
    assert find_routes([(0, 1), (0, 2), (1, 3), (2, 3)], hosts(4)) == {(3, 0): (1,), (2, 1): (0,)}


def test_a_chain_is_walked_from_the_higher_rank() -> None:
    assert find_routes([(0, 1), (1, 2), (2, 3)], hosts(4)) == {(2, 0): (1,), (3, 0): (2, 1), (3, 1): (2,)}


def test_of_two_short_routes_the_one_with_fewer_cables_is_taken() -> None:
    linked = [(0, 1), (1, 3), (0, 2), (2, 3)]
    assert find_routes(linked, ["a", "b", "c", "c"])[3, 0] == (2,)


def test_a_slow_cable_is_gone_around_once_it_is_measured() -> None:
    linked = [(0, 1), (1, 4), (0, 2), (2, 3), (3, 4)]
    cells: list[list[float | None]] = [[None] * 5 for _ in range(5)]
    for low, high in linked:
        cells[low][high] = cells[high][low] = 1e-9
    cells[1][4] = 1e-6
    beta = tuple(map(tuple, cells))
    alpha = tuple(tuple(None if cell is None else 10e-6 for cell in row) for row in beta)
    assert find_routes(linked, hosts(5))[4, 0] == (1,)
    assert find_routes(linked, hosts(5), PairCosts(alpha, beta))[4, 0] == (3, 2)
