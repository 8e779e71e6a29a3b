"""From a model and the ranks at hand to a plan: which rank holds what."""

from ferrule.plan.plan import Plan, Shard, Strategy

__all__ = ["Plan", "Shard", "Strategy"]
