"""Published measurements of others' machines beside the planner's predictions, cross-validated."""

from ferrule.bench.published.cross import PublishedBench, PublishedRow, bench_published

__all__ = ["PublishedBench", "PublishedRow", "bench_published"]
