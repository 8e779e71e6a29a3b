"""Run a sweep on emulated hosts, one per rank, that are wired in one way or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ferrule.bench.fabric.rows import Row
from ferrule.bench.fabric.run import FabricBench, bench_fabric
from ferrule.bench.fabric.sweep import Sweep
from ferrule.errors import ConfigError
from ferrule.lab import Lab, Topology, chain, mesh, ring, star, switch

SHAPES: dict[str, Callable[[int], Topology]] = {
    "chain": chain,
    "ring": ring,
    "star": star,
    "mesh": mesh,
    "switch": switch,
}


def bench_shape(sweep: Sweep, shape: str, say: Callable[[str], None] = lambda line: None) -> FabricBench:
    """`bench_fabric` for each number of ranks on as many hosts. Cables are as fast as this machine copies.

    Ferrule uses the cables alone and relays where there is none. The hosts also forward packets for peers, such as
    Gloo, that must reach every other rank. Raises `ConfigError` for an unknown shape, `LabError` where there can be
    no lab.
    """
    if shape not in SHAPES:
        raise ConfigError(f"--lab: there is no {shape!r}; choose from {', '.join(SHAPES)}")
    rows: list[Row] = []
    notes: list[str] = []
    for ranks in sweep.ranks:
        with Lab(SHAPES[shape](ranks), forwarding=True) as lab:
            result = bench_fabric(replace(sweep, ranks=(ranks,)), say, lab=lab)
        rows += result.rows
        notes += result.notes
    return FabricBench(tuple(rows), tuple(dict.fromkeys(notes)))
