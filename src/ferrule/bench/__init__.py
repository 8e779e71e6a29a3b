"""Measure Ferrule beside what else there is."""

from ferrule.bench.fabric import DEFAULT_SIZES, FabricBench, Row, bench_fabric

__all__ = ["DEFAULT_SIZES", "FabricBench", "Row", "bench_fabric"]
