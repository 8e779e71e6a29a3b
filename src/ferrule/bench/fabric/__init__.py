"""Measure the fabric beside other libraries and beside the limits of the machine."""

from ferrule.bench.fabric.rows import Row
from ferrule.bench.fabric.run import FabricBench, bench_fabric
from ferrule.bench.fabric.sweep import Sweep

__all__ = ["FabricBench", "Row", "Sweep", "bench_fabric"]
