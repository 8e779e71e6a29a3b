"""Benchmark of one machine's device: a short measurement whose results are remembered."""
