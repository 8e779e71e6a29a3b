"""Find the best plans."""

from ferrule.plan.search.apart import Apart, search_apart
from ferrule.plan.search.best import SearchResult, best_plan, search

__all__ = ["Apart", "SearchResult", "best_plan", "search", "search_apart"]
