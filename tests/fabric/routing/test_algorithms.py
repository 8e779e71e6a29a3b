"""Every algorithm of every collective gives the right result, the same bits on every rank, for any shape of group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected import DTYPES, OPS, Array, Case, Op, make_input, reduced
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_threads import on_all, thread_groups

from ferrule.fabric import Group
from ferrule.fabric.routing.algorithms import CANDIDATES, Strategy, choose_algorithms
from ferrule.fabric.routing.costs import PairCosts

ALGORITHMS = ("once", "pieces", "doubling", "tree", "ring")
IN_RANK_ORDER = ("once", "pieces", "doubling")
"""These combine the ranks in the order 0, 1, 2..., so their results are those of numpy to the last bit."""
SIZES = st.one_of(st.integers(0, 40), st.integers(0, 5000), st.sampled_from([16_384, 65_537, 300_007]))

many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def linked(size: int, edges: list[tuple[int, int]], alpha: float = 30e-6, beta: float = 1e-9) -> PairCosts:
    """``size`` ranks with equal links where ``edges`` says."""
    pairs = {*edges, *((b, a) for a, b in edges)}

    def matrix(value: float) -> tuple[tuple[float | None, ...], ...]:
        return tuple(tuple(value if (a, b) in pairs else None for b in range(size)) for a in range(size))

    return PairCosts(matrix(alpha), matrix(beta))


def chain(size: int) -> PairCosts:
    return linked(size, [(rank, rank + 1) for rank in range(size - 1)])


def circle(size: int) -> PairCosts:
    return linked(size, [(rank, (rank + 1) % size) for rank in range(size)])


def star(size: int) -> PairCosts:
    return linked(size, [(0, rank) for rank in range(1, size)])


def mesh(size: int) -> PairCosts:
    return linked(size, [(a, b) for a in range(size) for b in range(a)])


@st.composite
def partial_mesh(draw: Any, size: int) -> PairCosts:
    """A random tree and some more links."""
    edges = [(draw(st.integers(0, rank - 1)), rank) for rank in range(1, size)]
    more = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=size))
    return linked(size, edges + [(a, b) for a, b in more if a != b])


def inputs_of(op: Op, dtype: str, count: int, size: int) -> list[Array]:
    if op == "prod" and dtype.startswith("float"):
        # Products of these stay far from the limits of float16, in whatever order.
        return [np.random.default_rng(rank).uniform(0.5, 1.5, count).astype(dtype) for rank in range(size)]
    return [make_input(Case(op, dtype, count), count, rank) for rank in range(size)]


def check(results: list[Array], wanted: Array, strategy: Strategy, op: str, size: int) -> None:
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes(), "the ranks differ"
    used = {row.algorithm for row in strategy.decisions if row.op == op}
    if wanted.dtype.kind != "f" or used <= set(IN_RANK_ORDER):
        assert results[0].tobytes() == wanted.tobytes()
    else:
        slack = size * np.finfo(wanted.dtype).eps * 40
        np.testing.assert_allclose(results[0].astype(float), wanted.astype(float), rtol=slack, atol=slack * 10)


@many
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    size=st.integers(2, 9),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(OPS),
    count=SIZES,
    data=st.data(),
)
def test_reductions(algorithm: str, size: int, dtype: str, op: Op, count: int, data: st.DataObject) -> None:
    if dtype == "bool" and op == "avg":
        op = "sum"
    costs = data.draw(partial_mesh(size))
    inputs = inputs_of(op, dtype, count, size)
    wanted = reduced(inputs, op)
    root = count % size
    blocks = [np.tile(part, (size, 1)) for part in inputs]

    def body(group: Group) -> tuple[Array, Array, Array]:
        x = inputs[group.rank].copy()
        group.all_reduce(x, op)
        scattered = group.reduce_scatter(blocks[group.rank], op)[0]
        assert blocks[group.rank].tobytes() == np.tile(inputs[group.rank], (size, 1)).tobytes(), "the input changed"
        y = inputs[group.rank].copy()
        group.reduce(y, root, op)
        if group.rank != root:
            assert y.tobytes() == inputs[group.rank].tobytes(), "reduce changed another rank's array"
        group.barrier()
        return x, scattered, y

    # A graph may have no ring, and not every operation has every algorithm: then the strategy takes another.
    strategy = choose_algorithms(costs, size, force=algorithm)
    groups = thread_groups(size, strategy)
    results = on_all(groups, body)
    for group in groups:
        group.close()
    check([x for x, _, _ in results], wanted, strategy, "all_reduce", size)
    for _, scattered, _ in results:
        check([scattered], wanted, strategy, "reduce_scatter", size)
    check([results[root][2]], wanted, strategy, "reduce", size)


@many
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    size=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    count=SIZES,
    data=st.data(),
)
def test_what_only_moves(algorithm: str, size: int, dtype: str, count: int, data: st.DataObject) -> None:
    costs = data.draw(partial_mesh(size)) if size > 1 else None
    inputs = [make_input(Case("sum", dtype, count), count, rank) for rank in range(size)]
    root = count % size
    # Rank a sends counts[a][b] rows to rank b.
    counts = [[(a * 7 + b * 3 + count) % 5 for b in range(size)] for a in range(size)]

    def rows(a: int, b: int) -> Array:
        return make_input(Case("sum", dtype, counts[a][b] * 3), a * size + b, b).reshape(counts[a][b], 3)

    def body(group: Group) -> None:
        me = group.rank
        assert group.all_gather(inputs[me]).tobytes() == b"".join(x.tobytes() for x in inputs)
        y = inputs[me].copy()
        group.broadcast(y, root)
        assert y.tobytes() == inputs[root].tobytes()
        whole = group.gather(inputs[me], root)
        assert whole is None if me != root else whole.tobytes() == b"".join(x.tobytes() for x in inputs)
        part = np.empty((1, count), dtype)
        group.scatter(np.stack(inputs) if me == root else None, root, part)
        assert part.tobytes() == inputs[me].tobytes()
        swapped = group.all_to_all(np.tile(inputs[me], (size, 1)))
        assert swapped.tobytes() == np.stack(inputs).tobytes()
        sent = np.concatenate([rows(me, peer) for peer in range(size)])
        uneven = group.all_to_all(sent, send_counts=counts[me], recv_counts=[counts[peer][me] for peer in range(size)])
        assert uneven.tobytes() == b"".join(rows(peer, me).tobytes() for peer in range(size))

    groups = thread_groups(size, choose_algorithms(costs, size, force=algorithm))
    on_all(groups, body)
    for group in groups:
        group.close()


@pytest.mark.parametrize("algorithm", ["tree", "ring", "pieces"])
def test_long_arrays_go_around_several_times(algorithm: str) -> None:
    count = 5_000_011
    groups = thread_groups(3, choose_algorithms(circle(3), 3, force=algorithm))
    results = on_all(groups, lambda group: group.all_reduce(np.arange(count, dtype=np.int32) * (group.rank + 1)))
    wanted = np.arange(count, dtype=np.int32) * 6
    for group, result in zip(groups, results, strict=True):
        group.close()
        assert result.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_quantized_error_is_within_its_bound(size: int, dtype: str, op: Op) -> None:
    block = 128
    for count in (1, 127, 128, 1000, 40_003):
        generator = np.random.default_rng(count)
        inputs = [
            (generator.standard_normal(count) * 10 ** generator.uniform(-2, 2)).astype(dtype) for _ in range(size)
        ]
        groups = thread_groups(size)
        results = on_all(groups, lambda group: group.all_reduce(inputs[group.rank].copy(), op, quantized=True))  # noqa: B023
        for group in groups:
            group.close()
        for result in results:
            assert result.tobytes() == results[0].tobytes(), "the ranks differ"
        exact = np.sum([x.astype(np.float64) for x in inputs], axis=0) / (size if op == "avg" else 1)
        padded = np.zeros((size, -(-count // block) * block))
        padded[:, :count] = inputs
        largest = np.abs(padded.reshape(size, -1, block)).max(axis=2).sum(axis=0)
        # One rounding per contribution, one of the result, and that of the element type.
        bound = np.repeat(2 * largest / 254 * 1.02, block)[:count] + np.abs(exact) * np.finfo(dtype).eps * 2
        assert (np.abs(results[0] - exact) <= bound).all()
        assert count < 1000 or np.abs(results[0] - exact).max() > 0, "nothing was rounded: was anything quantized?"


def test_infinities_make_their_block_nan_and_no_other() -> None:
    inputs = np.ones((2, 300), np.float32)
    inputs[1, 5] = np.inf
    groups = thread_groups(2)
    results = on_all(groups, lambda group: group.all_reduce(inputs[group.rank].copy(), quantized=True))
    for group, result in zip(groups, results, strict=True):
        group.close()
        assert np.isnan(result[:128]).all()
        np.testing.assert_allclose(result[128:], 2, rtol=1e-2)


def test_quantized_is_refused_where_it_has_no_meaning() -> None:
    groups = thread_groups(2)

    def body(group: Group) -> None:
        with pytest.raises(TypeError, match="quantized"):
            group.all_reduce(np.ones(3, np.int32), quantized=True)
        with pytest.raises(TypeError, match="quantized"):
            group.all_reduce(np.ones(3, np.float32), "max", quantized=True)
        group.barrier()

    on_all(groups, body)
    for group in groups:
        group.close()


@pytest.mark.parametrize(
    ("costs", "wanted"),
    [
        (chain(5), {"tree"}),
        (star(5), {"tree", "pieces"}),
        (circle(5), {"once", "pieces", "tree", "ring"}),
        (mesh(4), {"once", "pieces"}),
    ],
)
def test_choice_fits_the_links(costs: PairCosts, wanted: set[str]) -> None:
    strategy = choose_algorithms(costs, costs.size)
    assert {row.algorithm for row in strategy.decisions} <= wanted
    assert strategy.decisions[-1].up_to == 2**64 - 1
    largest = next(row for row in reversed(strategy.decisions) if row.op == "all_reduce")
    assert largest.algorithm == {chain(5): "tree", star(5): "tree", circle(5): "ring", mesh(4): "pieces"}[costs]
    # The tree runs along links only, and so does the ring.
    for rank, parent in enumerate(strategy.tree):
        assert parent < 0 or costs.linked(rank, parent)
    for a, b in zip(strategy.ring, (*strategy.ring[1:], *strategy.ring[:1]), strict=True):
        assert costs.linked(a, b)


def test_many_ranks_that_share_cores_send_fewer_messages() -> None:
    costs = mesh(8)
    crowded = PairCosts(costs.alpha, costs.beta, crowding=4)
    small = next(row for row in choose_algorithms(crowded, 8).decisions if row.op == "all_reduce")
    assert small.algorithm == "doubling"


def test_two_ranks_and_unknown_links_need_no_strategy() -> None:
    assert choose_algorithms(mesh(2), 2) == Strategy()
    assert choose_algorithms(None, 8) == Strategy()
    assert str(Strategy()) == "every rank talks to every other directly"
    assert "ring: 0-1-2-3-4" in str(choose_algorithms(circle(5), 5))


def test_every_candidate_is_one_of_the_native_core() -> None:
    for force in ALGORITHMS:
        for row in choose_algorithms(None, 4, force=force).decisions:
            assert row.algorithm in CANDIDATES[row.op]
            assert row.algorithm == force or force not in CANDIDATES[row.op]


def test_a_rank_through_which_all_pass_is_no_place_for_many_messages() -> None:
    """It forwards them one after the other: neighbours that combine them on their way are quicker."""
    for costs in (star(8), circle(8)):
        small = next(row for row in choose_algorithms(costs, 8).decisions if row.op == "all_reduce")
        assert small.algorithm == "tree"
    assert choose_algorithms(mesh(8), 8).decisions[0].algorithm in ("once", "doubling")
