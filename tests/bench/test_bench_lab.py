"""The fabric's benchmark on emulated hosts."""

from __future__ import annotations

import pytest

from ferrule.bench import Sweep, bench_fabric
from ferrule.bench.fabric.in_lab import bench_shape
from ferrule.errors import ConfigError
from ferrule.lab import Lab, chain, switch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]


def test_ranks_run_on_the_hosts_of_a_lab() -> None:
    pytest.importorskip("torch")
    sweep = Sweep(sizes=(8192,), transports=("tcp",), ranks=(3,), impls=("ferrule", "gloo"), quick=True)
    with Lab(switch(3)) as lab:
        bench = bench_fabric(sweep, lab=lab)
    assert {row["impl"] for row in bench.rows} == {"ferrule", "gloo"}


def test_gloo_needs_a_cable_between_any_two() -> None:
    pytest.importorskip("torch")
    sweep = Sweep(sizes=(8192,), transports=("tcp",), ranks=(3,), impls=("gloo",), quick=True)
    with Lab(chain(3)) as lab:
        bench = bench_fabric(sweep, lab=lab)
    assert bench.rows == ()
    assert any("gloo tcp is left out" in note for note in bench.notes)


def test_on_a_chain_gloo_takes_part_where_hosts_forward_its_packets() -> None:
    pytest.importorskip("torch")
    sweep = Sweep(sizes=(8192,), transports=("tcp",), ranks=(3,), impls=("ferrule", "gloo"), quick=True)
    bench = bench_shape(sweep, "chain")
    assert {row["impl"] for row in bench.rows} == {"ferrule", "gloo"}, bench.notes


def test_a_shape_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--lab: there is no 'tree'; choose from chain"):
        bench_shape(Sweep(), "tree")
