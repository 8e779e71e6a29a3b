"""Measure Ferrule beside what else there is."""

from ferrule.bench.fabric import FabricBench, Row, Sweep, bench_fabric
from ferrule.bench.rails import Moment, RailsBench, bench_rails

__all__ = ["FabricBench", "Moment", "RailsBench", "Row", "Sweep", "bench_fabric", "bench_rails"]
