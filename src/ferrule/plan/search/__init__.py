"""Find the best plans."""

from ferrule.plan.search.best import SearchResult, best_plan, search

__all__ = ["SearchResult", "best_plan", "search"]
